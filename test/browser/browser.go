// Package browser drives a headless Chromium by its DevTools protocol, for tests of pages.
package browser

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/testutil"
)

// Browser is a Chromium. A test uses it from one goroutine.
type Browser struct {
	t        testing.TB
	patience time.Duration // for an answer, and for what a page is to become
	ws       *websocket.Conn
	id       int
	// Events are those that came while commands were answered.
	Events []Event
}

// Event is what a tab reports by itself, once its domain is enabled.
type Event struct {
	Tab, Method string
	Params      json.RawMessage
}

// Start runs a Chromium, which ends with the test.
func Start(t testing.TB, patience time.Duration) *Browser {
	t.Helper()
	program := testutil.RequireProgram(t, "chromium")
	dir, err := os.MkdirTemp("", "boxd-chromium-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	cmd := exec.Command(program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-extensions", "--no-proxy-server",
		"--user-data-dir="+dir, "--remote-debugging-port=0", "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+dir)
	out, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	b := &Browser{t: t, patience: patience}
	t.Cleanup(func() {
		if b.ws == nil || b.ws.WriteJSON(map[string]any{"id": 1 << 30, "method": "Browser.close"}) != nil {
			cmd.Process.Kill()
		}
		cmd.Wait()
		if b.ws != nil {
			b.ws.Close()
		}
	})
	lines := bufio.NewScanner(out)
	for lines.Scan() {
		_, url, ok := strings.Cut(lines.Text(), "DevTools listening on ")
		if !ok {
			continue
		}
		go io.Copy(io.Discard, out)
		ws, resp, err := websocket.DefaultDialer.Dial(url, nil)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		b.ws = ws
		return b
	}
	t.Fatal("Chromium ended: ", lines.Err())
	return nil
}

// Call sends a command to a tab, or to the browser if tab is "", and waits for its answer.
func (b *Browser) Call(tab, method string, params any, result any) error {
	b.t.Helper()
	b.id++
	b.ws.SetWriteDeadline(time.Now().Add(b.patience))
	b.ws.SetReadDeadline(time.Now().Add(b.patience))
	if err := b.ws.WriteJSON(map[string]any{"id": b.id, "sessionId": tab, "method": method, "params": params}); err != nil {
		b.t.Fatal(err)
	}
	for {
		var answer struct {
			ID                int
			SessionID, Method string
			Params, Result    json.RawMessage
			Error             *struct{ Message string }
		}
		if err := b.ws.ReadJSON(&answer); err != nil {
			b.t.Fatalf("%s: %v", method, err)
		}
		switch {
		case answer.Method != "":
			b.Events = append(b.Events, Event{answer.SessionID, answer.Method, answer.Params})
		case answer.ID != b.id:
		case answer.Error != nil:
			return fmt.Errorf("%s: %s", method, answer.Error.Message)
		case result != nil:
			return json.Unmarshal(answer.Result, result)
		default:
			return nil
		}
	}
}

// Must is Call of a command that must succeed.
func (b *Browser) Must(tab, method string, params any, result any) {
	b.t.Helper()
	if err := b.Call(tab, method, params, result); err != nil {
		b.t.Fatal(err)
	}
}

// Open opens a tab, which stays open.
func (b *Browser) Open(url string) (tab string) {
	b.t.Helper()
	var target struct{ TargetID string }
	var attached struct{ SessionID string }
	b.Must("", "Target.createTarget", map[string]any{"url": url}, &target)
	b.Must("", "Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &attached)
	return attached.SessionID
}

// Eval returns the value of an expression, a string or the promise of one.
func (b *Browser) Eval(tab, expression string) (string, error) {
	var got struct {
		Result           struct{ Value string }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	err := b.Call(tab, "Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &got)
	if err == nil && got.ExceptionDetails != nil {
		err = fmt.Errorf("%.200s: %s %s", expression, got.ExceptionDetails.Text, got.ExceptionDetails.Exception.Description)
	}
	return got.Result.Value, err
}

// Await evaluates until the value is not empty: a page that loads has no value yet, or loses it.
func (b *Browser) Await(tab, expression string) string {
	b.t.Helper()
	deadline := time.Now().Add(b.patience)
	for {
		got, err := b.Eval(tab, expression)
		if got != "" && err == nil {
			return got
		}
		if time.Now().After(deadline) {
			page, _ := b.Eval(tab, "location.href + ' ' + document.documentElement.outerHTML")
			b.t.Fatalf("%s: %q, %v; the page: %s", expression, got, err, page)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Type types text where the focus is, key by key; "\n" is the Enter key.
func (b *Browser) Type(tab, text string) {
	b.t.Helper()
	for _, r := range text {
		if r == '\n' {
			b.Press(tab, "Enter", "\r")
			continue
		}
		b.Must(tab, "Input.dispatchKeyEvent", map[string]any{"type": "char", "text": string(r)}, nil)
	}
}

// keyCodes are the codes that pages look at (DOM's keyCode) of keys with a name.
var keyCodes = map[string]int{"Enter": 13, "Tab": 9, "Escape": 27, "F6": 117, "Backspace": 8}

// Press presses and releases a key by its name (DOM's key); text is what it inserts, "" for nothing.
func (b *Browser) Press(tab, key, text string) {
	b.t.Helper()
	down := map[string]any{"type": "rawKeyDown", "key": key, "code": key, "windowsVirtualKeyCode": keyCodes[key]}
	if text != "" {
		down["type"], down["text"] = "keyDown", text
	}
	b.Must(tab, "Input.dispatchKeyEvent", down, nil)
	b.Must(tab, "Input.dispatchKeyEvent", map[string]any{"type": "keyUp", "key": key, "code": key, "windowsVirtualKeyCode": keyCodes[key]}, nil)
}

// Screenshot returns a PNG of what a tab shows.
func (b *Browser) Screenshot(tab string) []byte {
	b.t.Helper()
	var shot struct{ Data string }
	b.Must(tab, "Page.captureScreenshot", map[string]any{"format": "png", "optimizeForSpeed": false}, &shot)
	png, err := base64.StdEncoding.DecodeString(shot.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	return png
}
