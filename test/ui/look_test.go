package ui

import (
	"bytes"
	"fmt"
	"image"
	"image/color"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
)

// shots is a directory for screenshots, among them those of docs/ui.md, whose names begin with "ui-"; empty: none are kept.
var shots = os.Getenv("BOXD_SHOTS")

func ptr[T any](v T) *T { return &v }

// populate makes sessions with something to see in them.
func (w *world) populate() {
	w.t.Helper()
	ctx := w.t.Context()
	for i, s := range []apitypes.SessionRequest{
		{ID: "render-0931", SessionSpec: apitypes.SessionSpec{Labels: map[string]string{"team": "film"}, LiveWishes: apitypes.LiveWishes{MaxLifetime: ptr(spec.Duration(3 * 24 * 3600e9))}}},
		{ID: "judge-7f3a", SessionSpec: apitypes.SessionSpec{Name: "Assignment 4", Labels: map[string]string{"course": "cs101"}, LiveWishes: apitypes.LiveWishes{Memory: ptr(spec.Size(256 << 20)), CPUs: ptr(0.5), PIDs: ptr(int64(64)), IdleTTL: ptr(spec.Duration(45e9))}}},
		{ID: "notebook-ada", SessionSpec: apitypes.SessionSpec{Labels: map[string]string{"user": "ada", "team": "vision"}, LiveWishes: apitypes.LiveWishes{Memory: ptr(spec.Size(512 << 20)), CPUs: ptr(2.0), IdleTTL: ptr(spec.Duration(2 * 3600e9)), MaxLifetime: ptr(spec.Duration(8 * 3600e9))}}},
		{ID: "bot_group_42", SessionSpec: apitypes.SessionSpec{LiveWishes: apitypes.LiveWishes{Sensitive: ptr(true), Retain: ptr("7d")}}},
	} {
		if _, err := w.api.Ensure(ctx, s); err != nil {
			w.t.Fatal(i, err)
		}
	}
	if _, err := w.api.Pause(ctx, "render-0931"); err != nil {
		w.t.Fatal(err)
	}
	for _, line := range []string{"echo fine", "exit 3", "kill -9 $$", "mkdir -p out; head -c 300000 /dev/zero > out/plot.png; echo '# Notes' > README.md; printf 'a,b\\n1,2\\n' > data.csv"} {
		if _, err := w.api.Exec(ctx, "notebook-ada", apitypes.ExecRequest{Shell: line}); err != nil {
			w.t.Fatal(err)
		}
	}
	for _, p := range []apitypes.ProcessRequest{
		{ID: "web", Argv: []string{"python3", "-u", "-m", "http.server", "8000"}, Ready: &apitypes.Ready{Port: 8000}, Wait: true, DropOldest: true},
		{ID: "worker", Shell: "for i in 1 2 3; do echo \"\033[32mstep $i\033[0m done\"; done; echo warning >&2; sleep 1000", DropOldest: true},
		{ID: "failed", Shell: "echo no such model >&2; exit 2"},
	} {
		if _, err := w.api.Start(ctx, "notebook-ada", p); err != nil {
			w.t.Fatal(err)
		}
	}
}

// show changes the size of a tab, in pixels, and the theme and the language of the page.
func (w *world) show(tab, theme, language string, width, height int) {
	w.t.Helper()
	w.Must(tab, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
	w.Await(tab, fmt.Sprintf(`(() => {
		const [language, theme] = document.querySelectorAll(".controls select");
		for (const [e, v] of [[language, %s], [theme, %s]]) { e.value = v; e.dispatchEvent(new Event("change", {bubbles: true})) }
		return document.documentElement.lang === %s ? "yes" : "";
	})()`, quote(language), quote(theme), quote(language)))
}

// look fails the test if what a tab shows breaks a rule of axe, or is wider than the screen. It keeps a screenshot.
func (w *world) look(tab, name string) {
	w.t.Helper()
	if shots != "" {
		if err := os.WriteFile(filepath.Join(shots, name+".png"), w.Screenshot(tab), 0o644); err != nil {
			w.t.Error(err)
		}
	}
	if got, err := w.Eval(tab, `typeof axe`); err != nil || got == "undefined" {
		const file = "../../ui/node_modules/axe-core/axe.min.js"
		testutil.RequireFile(w.t, file)
		axe, err := os.ReadFile(file)
		if err != nil {
			w.t.Fatal(err)
		}
		if _, err := w.Eval(tab, string(axe)+`;""`); err != nil {
			w.t.Fatal(err)
		}
	}
	got, err := w.Eval(tab, `axe.run(document, {resultTypes: ["violations"]}).then(r => r.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.map(n => n.html + " " + n.failureSummary).join("; ")).join("\n"))`)
	if err != nil || got != "" {
		w.t.Errorf("%s: %s %v", name, got, err)
	}
	if got, err := w.Eval(tab, `document.documentElement.scrollWidth > innerWidth ? document.documentElement.scrollWidth + " of " + innerWidth : ""`); err != nil || got != "" {
		w.t.Errorf("%s: wider than the screen: %s %v", name, got, err)
	}
}

// The page is accessible by the rules of axe, in every view, dark and light, on a phone and on a desk, and in both
// languages; no view is wider than a phone.
func TestLook(t *testing.T) {
	w := begin(t, "--langbot-listen", "127.0.0.1:0")
	w.populate()
	tab := w.page("", 1280, 800)
	w.Await(tab, `document.querySelector("[name=token]") ? "yes" : ""`)
	w.look(tab, "sign-in")
	w.signIn(tab, operatorToken)
	session := "#/s/acme/notebook-ada/"
	views := []struct{ name, fragment, selector, text string }{
		{"sessions", "#/sessions", "td a", "notebook-ada"},
		{"overview", session + "overview", ".meter", "MiB"},
		{"processes", session + "processes", "td", "http.server"},
		{"log", session + "processes/worker", ".log", "step 3"},
		{"files", session + "files", "td", "data.csv"},
		{"ports", session + "ports", "td", "8000"},
		{"network", session + "network", "main", "boxd"},
		{"history", session + "history", "td", "exit 3"},
		{"events", "#/events", "td", "notebook-ada"},
		{"paused", "#/s/acme/render-0931/overview", ".meter", "MiB"},
		{"status", "#/status", ".meters", "1,024"},
	}
	// Something for the list of events, which begins when the page is opened.
	if _, err := w.api.Exec(t.Context(), "notebook-ada", apitypes.ExecRequest{Shell: "true"}); err != nil {
		t.Fatal(err)
	}
	forms := []struct {
		name, theme, language string
		width, height         int
	}{{"desktop-light-en", "light", "en", 1280, 800}, {"phone-dark-zh", "dark", "zh", 390, 844}}
	if testutil.Full() || shots != "" {
		forms = append(forms, forms[0], forms[1])
		forms[2].name, forms[2].theme, forms[2].language = "desktop-dark-zh", "dark", "zh"
		forms[3].name, forms[3].theme, forms[3].language = "phone-light-en", "light", "en"
	}
	for _, f := range forms {
		w.show(tab, f.theme, f.language, f.width, f.height)
		for _, v := range views {
			w.Await(tab, fmt.Sprintf(`(location.hash = %s, "yes")`, quote(v.fragment)))
			if v.name == "network" {
				w.Await(tab, `document.querySelectorAll("main h2").length >= 3 ? "yes" : ""`)
			} else {
				w.awaitText(tab, v.selector, v.text)
			}
			if v.name == "status" && f.language == "en" {
				for _, works := range []string{"Daemon works", "Engine works", "LangBot's door works"} {
					w.awaitText(tab, ".parts", works)
				}
			}
			if v.name == "ports" { // this daemon has no previews
				w.awaitText(tab, "main", "boxd forward notebook-ada PORT")
			}
			w.look(tab, v.name+"-"+f.name)
		}
		// The dialogs: a form, and a question.
		w.Await(tab, `(location.hash = "#/sessions", document.querySelector("td a") ? "yes" : "")`)
		for i, name := range []string{"create", "pause", "stop"} {
			w.Await(tab, fmt.Sprintf(`(() => { const b = [...document.querySelectorAll("main .bar button.primary, main td button")][%d]; b?.click(); return document.querySelector("dialog[open]") ? "yes" : "" })()`, i))
			w.look(tab, name+"-"+f.name)
			w.Press(tab, "Escape", "")
			w.Await(tab, `document.querySelector("dialog[open]") ? "" : "yes"`)
		}
	}
	widths := []int{320, 880}
	if testutil.Full() {
		widths = append(widths, 700, 1000, 1100)
	}
	for _, width := range widths {
		w.Must(tab, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": false}, nil)
		for _, v := range views {
			w.Await(tab, fmt.Sprintf(`(location.hash = %s, "yes")`, quote(v.fragment)))
			if v.name != "network" {
				w.awaitText(tab, v.selector, v.text)
			}
			if got, err := w.Eval(tab, `document.documentElement.scrollWidth > innerWidth ? "" + document.documentElement.scrollWidth : ""`); err != nil || got != "" {
				t.Errorf("%s is %s wide on a screen of %d: %v", v.name, got, width, err)
			}
		}
	}
	w.Must(tab, "Emulation.setDeviceMetricsOverride", map[string]any{"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": false}, nil)
	w.Await(tab, `(location.hash = "#/s/acme/notebook-ada/processes", document.querySelector("main .bar button.primary") ? "yes" : "")`)
	w.Await(tab, `(document.querySelector("main .bar button.primary").click(), "yes")`)
	w.Await(tab, rows+`.includes("root@") ? "yes" : ""`)
	w.Type(tab, "ls -l --color; printf '\\033[38;2;255;128;0mtrue colour\\033[0m\\n'\n")
	w.Await(tab, rows+`.split("true colour").length > 2 ? "yes" : ""`)
	w.look(tab, "terminal")
	for height := 640; height < 660; height += 4 { // with more and less space below the last row
		w.Must(tab, "Emulation.setDeviceMetricsOverride", map[string]any{"width": 1120, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
		w.Await(tab, `new Promise(f => requestAnimationFrame(() => requestAnimationFrame(() => f("yes"))))`) // it is fitted
		w.framed(tab)
	}
	if got := w.Await(tab, `[...document.querySelectorAll(".xterm-rows span")].map(s => getComputedStyle(s).color).join()`); !strings.Contains(got, "rgb(255, 128, 0)") {
		t.Errorf("colours of the terminal: %s", got)
	}
	if shots != "" {
		w.documentShots(tab)
	}
}

// framed fails the test if a part of a terminal is outside of its frame, or the frame has something else at its right
// or lower edge than the background.
func (w *world) framed(tab string) {
	w.t.Helper()
	place := w.Await(tab, `(() => {
		const [frame, ...parts] = [".screen", ".xterm", ".xterm-viewport", ".xterm-screen"].map(s => document.querySelector(s).getBoundingClientRect());
		const out = parts.filter(p => p.left < frame.left || p.top < frame.top || p.right > frame.right || p.bottom > frame.bottom);
		return out.length > 0 ? JSON.stringify([frame, ...out]) : [frame.left, frame.top, frame.right, frame.bottom].map(Math.round).join(" ");
	})()`)
	var left, top, right, bottom int
	if _, err := fmt.Sscan(place, &left, &top, &right, &bottom); err != nil {
		w.t.Fatalf("parts of the terminal are outside of its frame: %s", place)
	}
	picture, err := png.Decode(bytes.NewReader(w.Screenshot(tab)))
	if err != nil {
		w.t.Fatal(err)
	}
	background := color.RGBA{0x10, 0x15, 0x1a, 0xff}
	const corner = 8 // the radius is 6 pixels
	for _, edge := range []image.Rectangle{image.Rect(right-12, top+corner, right-1, bottom-corner), image.Rect(left+corner, bottom-4, right-corner, bottom-1)} {
		for y := edge.Min.Y; y < edge.Max.Y; y++ {
			for x := edge.Min.X; x < edge.Max.X; x++ {
				if got := color.RGBAModel.Convert(picture.At(x, y)); got != background {
					w.t.Fatalf("the terminal, %s, has the colour %v at %d, %d", place, got, x, y)
				}
			}
		}
	}
}

// documentShots writes the pictures of docs/ui.md. The tab shows a terminal.
func (w *world) documentShots(tab string) {
	w.t.Helper()
	shoot := func(name, fragment, language, theme, text string, width, height int) {
		w.Must(tab, "Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}, nil)
		w.Await(tab, fmt.Sprintf(`(() => {
			const [l, t] = document.querySelectorAll(".controls select");
			for (const [e, v] of [[l, %s], [t, %s]]) { e.value = v; e.dispatchEvent(new Event("change", {bubbles: true})) }
			if (%s) location.hash = %s;
			return document.documentElement.lang === %s ? "yes" : "";
		})()`, quote(language), quote(theme), quote(fragment), quote(fragment), quote(language)))
		w.awaitText(tab, "main", text)
		w.Must(tab, "Emulation.resetPageScaleFactor", nil, nil)
		if err := os.WriteFile(filepath.Join(shots, name), w.Screenshot(tab), 0o644); err != nil {
			w.t.Error(err)
		}
	}
	shoot("ui-terminal.png", "", "en", "light", "Connected", 1120, 640)
	shoot("ui-sessions.png", "#/sessions", "en", "light", "notebook-ada", 1120, 560)
	shoot("ui-phone.png", "#/s/acme/notebook-ada/overview", "zh", "dark", "exit 3", 390, 780)
}
