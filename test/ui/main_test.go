// Package ui tests the operator's page in a real browser, against a real daemon.
package ui

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/browser"
	"github.com/boxd/boxd/test/daemon"
)

func TestMain(m *testing.M) { testutil.MainReaping(m) }

const patience = time.Minute

const (
	operatorToken = "operator-0123456789abcdef0123456789"
	viewerToken   = "viewer-0123456789abcdef0123456789"
	adminToken    = "admin-0123456789abcdef0123456789"
	strangerToken = "stranger-0123456789abcdef0123456789"
	slowToken     = "slow-0123456789abcdef0123456789"
)

// world is a daemon with tokens, and a browser.
type world struct {
	*browser.Browser
	t      *testing.T
	daemon *daemon.Daemon
	api    *client.Client // of tenant acme
	base   string         // URL of the daemon
}

func begin(t *testing.T, args ...string) *world {
	t.Helper()
	testutil.RequireRoot(t)
	if testing.Short() {
		t.Skip("no kernel makes a difference to this; -short leaves it out")
	}
	w := &world{t: t, Browser: browser.Start(t, patience)}
	dir := testutil.ReachableDir(t, "")
	tokens := filepath.Join(dir, "tokens")
	text := operatorToken + " acme operator ops\n" + viewerToken + " acme viewer eyes\n" + adminToken + " default admin root\n" +
		strangerToken + " other operator them\n" + slowToken + " acme viewer slow requests=2 requests_burst=4\n"
	if err := os.WriteFile(tokens, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	// The same port after a restart: the page of a browser stays where it is.
	address := freeAddress(t)
	w.base = "http://" + address
	w.daemon, _ = daemon.ForTest(t, daemon.Config{Dir: dir, Args: append([]string{"--listen", address, "--tokens-file", tokens}, args...)})
	var err error
	if w.api, err = client.New(client.Options{Socket: w.daemon.Socket(), Tenant: "acme"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.api.Close)
	return w
}

// config writes a configuration, and returns the arguments with which a daemon reads it.
func config(t *testing.T, text string) (args []string) {
	t.Helper()
	file := filepath.Join(testutil.ReachableDir(t, ""), "boxd.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil { // for the daemon's user
		t.Fatal(err)
	}
	return []string{"--config", file}
}

// freeAddress returns a TCP address on loopback that is free now.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// page opens the page at a fragment such as "#/status", in a tab of a given size. Nothing may be written to the
// console there, and the page's policy may not have refused anything: the test ends with that.
func (w *world) page(fragment string, width, height int) (tab string) {
	w.t.Helper()
	tab = w.Open("about:blank")
	w.Must(tab, "Page.enable", nil, nil)
	w.Must(tab, "Runtime.enable", nil, nil)
	w.Must(tab, "Log.enable", nil, nil)
	w.Must(tab, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	w.Must(tab, "Page.addScriptToEvaluateOnNewDocument", map[string]any{"source": `addEventListener("securitypolicyviolation", e => (window.violations ??= []).push(e.violatedDirective + " " + e.sourceFile + ":" + e.lineNumber + " " + e.sample))`}, nil)
	w.Must(tab, "Page.navigate", map[string]any{"url": w.base + "/ui" + fragment}, nil)
	w.t.Cleanup(func() {
		if got, err := w.Eval(tab, `(window.violations ?? []).join("; ")`); err != nil || got != "" {
			w.t.Errorf("the page's policy refused: %s, %v", got, err)
		}
		for _, e := range w.Events {
			if e.Tab == tab && e.Method == "Runtime.exceptionThrown" {
				w.t.Errorf("the page failed: %s", e.Params)
			}
		}
	})
	return tab
}

// signIn types a token into the login of a tab.
func (w *world) signIn(tab, token string) {
	w.t.Helper()
	w.Await(tab, `document.activeElement?.name === "token" ? "yes" : ""`)
	w.Type(tab, token+"\n")
	w.Await(tab, `document.querySelector(".who")?.textContent`)
}

// click clicks what a selector finds with this text or label.
func (w *world) click(tab, selector, text string) {
	w.t.Helper()
	w.Await(tab, fmt.Sprintf(`(() => {
		const found = [...document.querySelectorAll(%s)].find(e => (e.ariaLabel || e.textContent).trim() === %s && !e.disabled);
		found?.focus();
		found?.click();
		return found ? "yes" : "";
	})()`, quote(selector), quote(text)))
}

// awaitText waits until what a selector finds contains text.
func (w *world) awaitText(tab, selector, text string) {
	w.t.Helper()
	w.Await(tab, fmt.Sprintf(`[...document.querySelectorAll(%s)].some(e => e.innerText.replaceAll("\u00a0", " ").includes(%s)) ? "yes" : ""`, quote(selector), quote(text)))
}

// awaitRow waits until a table, known by its caption, has a row whose cells, joined by " | ", match a pattern of JavaScript.
func (w *world) awaitRow(tab, caption, pattern string) {
	w.t.Helper()
	w.Await(tab, fmt.Sprintf(`[...document.querySelectorAll("table")].filter(t => t.caption.textContent === %s).flatMap(t => [...t.tBodies[0].rows])
		.some(r => new RegExp(%s).test([...r.cells].map(c => c.innerText.replaceAll("\n", " ").replaceAll("\u00a0", " ").trim()).join(" | "))) ? "yes" : ""`, quote(caption), quote(pattern)))
}

// fill sets the field of a form.
func (w *world) fill(tab, name, value string) {
	w.t.Helper()
	w.Await(tab, fmt.Sprintf(`(() => {
		const e = document.querySelector("form [name=" + %s + "]");
		if (!e) return "";
		e.value = %s;
		e.dispatchEvent(new Event("input", {bubbles: true}));
		return "yes";
	})()`, quote(name), quote(value)))
}

// quote is a string of JavaScript.
func quote(s string) string {
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string
	}
	return string(b)
}

// rows are the lines that a terminal shows, without empty ones at the end.
const rows = `[...document.querySelectorAll(".xterm-rows > div")].map(r => r.textContent.replaceAll("\u00a0", " ").trimEnd()).join("\n").trimEnd()`

// program returns the output of a program of the repository's Node packages.
func program(t *testing.T, dir string, args ...string) string {
	t.Helper()
	node := testutil.RequireProgram(t, "node")
	testutil.RequireFile(t, "../../ui/node_modules/.package-lock.json")
	cmd := exec.CommandContext(t.Context(), node, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("node %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}
