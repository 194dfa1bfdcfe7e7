package langbot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// physical is the id of a session of namespace i/w in generation 1.
func physical(session string) string { return "ws-" + namespaceIW + "-g1-" + session }

var namespaceIW = fmt.Sprintf("%x", sha256.Sum256([]byte("i\x00w")))[:24]

// attach opens the relay of a process.
func (b *bot) attach(session, id string) *websocket.Conn {
	b.w.t.Helper()
	ws, err := b.tryAttach(session, id, b.at.Headers())
	if err != nil {
		b.w.t.Fatal(err)
	}
	return ws
}

func (b *bot) tryAttach(session, id string, h http.Header) (*websocket.Conn, error) {
	ctx, cancel := context.WithTimeout(b.w.t.Context(), patience)
	defer cancel()
	ws, err := b.w.dialer().Relay(ctx, h, physical(session), id)
	if err == nil {
		b.w.t.Cleanup(func() { ws.Close() })
	}
	return ws, err
}

// next reads one message.
func next(t *testing.T, ws *websocket.Conn) string {
	t.Helper()
	if err := ws.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	kind, message, err := ws.ReadMessage()
	if err != nil || kind != websocket.TextMessage {
		t.Fatalf("kind %d, %v", kind, err)
	}
	return string(message)
}

// rest reads to the end and returns all text and the close code.
func rest(t *testing.T, ws *websocket.Conn) (messages []string, code int) {
	t.Helper()
	if err := ws.SetReadDeadline(time.Now().Add(patience)); err != nil {
		t.Fatal(err)
	}
	for {
		_, message, err := ws.ReadMessage()
		var closed *websocket.CloseError
		if errors.As(err, &closed) {
			return messages, closed.Code
		}
		if err != nil {
			t.Fatal(err)
		}
		messages = append(messages, string(message))
	}
}

func say(t *testing.T, ws *websocket.Conn, text string) {
	t.Helper()
	if err := ws.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		t.Fatal(err)
	}
}

// TestRelayLines: one message per line, whatever the pieces that the process wrote.
func TestRelayLines(t *testing.T) {
	t.Parallel()
	anyKernel(t)
	b := begin(t).bot("i", "w")
	b.call("box_create_session", spec("s", nil))
	b.launch("s", "p", "python3", "-c", `
import os, sys, time
def w(s):
    while s: s = s[os.write(1, s):]
w(b'{"a":1}\n{"b":2}\n')
w(b'x' * 300001 + b'\n')
w(b'\xc3'); time.sleep(0.3); w(b'\xa9\n')
w(b'bad\xff\n')
w(b'prompt> '); sys.stdin.readline()
w(b'y' * (1 << 20) + b'\n')
w(b'last')
`)
	ws := b.attach("s", "p")
	for _, want := range []string{"{\"a\":1}\n", "{\"b\":2}\n", strings.Repeat("x", 300001) + "\n", "é\n", "bad\uFFFD\n", "prompt> "} {
		if got := next(t, ws); got != want {
			t.Errorf("%d bytes %.60q, want %.60q", len(got), got, want)
		}
	}
	say(t, ws, "go")
	messages, code := rest(t, ws)
	if strings.Join(messages, "") != strings.Repeat("y", 1<<20)+"\nlast" || code != websocket.CloseNormalClosure {
		t.Errorf("%d messages, code %d", len(messages), code)
	}
	for _, m := range messages {
		if len(m) > 1<<20 {
			t.Errorf("a message of %d bytes", len(m))
		}
	}
}

// TestRelayStdin: a message is a line, and nothing in it is changed.
func TestRelayStdin(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	b.call("box_create_session", spec("s", nil))
	b.launch("s", "p", "python3", "-uc", "import sys\nfor l in sys.stdin.buffer: print(repr(l), flush=True)")
	ws := b.attach("s", "p")
	if err := ws.WriteMessage(websocket.BinaryMessage, []byte("ignored\n")); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]string{
		"one":     {`b'one\n'`},
		"a\nb":    {`b'a\n'`, `b'b\n'`},
		"trail\n": {`b'trail\n'`, `b'\n'`},
		"":        {`b'\n'`},
		"é\x00\r": {`b'\xc3\xa9\x00\r\n'`},
	} {
		say(t, ws, text)
		for _, line := range want {
			if got := next(t, ws); got != line+"\n" {
				t.Errorf("%q arrived as %q, want %q", text, got, line)
			}
		}
	}
	big := strings.Repeat("z", 5<<20)
	say(t, ws, big)
	var got strings.Builder
	for got.Len() < len(big)+len(`b'\n'`)+1 {
		got.WriteString(next(t, ws))
	}
	if got.String() != "b'"+big+`\n'`+"\n" {
		t.Errorf("%d bytes came back", got.Len())
	}
}

// TestRelayBeforeAttach: output without a reader is kept; if there is too much, the process waits.
func TestRelayBeforeAttach(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	b.call("box_create_session", spec("s", nil))
	b.launch("s", "p", "python3", "-c", `
for i in range(200000): print('line %d' % i)
open('/workspace/done', 'w').close()`)
	b.w.await("something has been written", func() bool { return b.process("s", "p").Status == "running" })
	ws := b.attach("s", "p")
	messages, code := rest(t, ws)
	if len(messages) != 200000 || code != websocket.CloseNormalClosure {
		t.Fatalf("%d messages, code %d", len(messages), code)
	}
	for i, m := range messages {
		if want := fmt.Sprintf("line %d\n", i); m != want {
			t.Fatalf("message %d is %q", i, m)
		}
	}
	var status *StatusError
	if _, err := b.tryAttach("s", "p", b.at.Headers()); !errors.As(err, &status) || status.Status != http.StatusBadRequest || !strings.Contains(status.Body, `"BoxManagedProcessConflictError"`) {
		t.Errorf("attaching to one that has ended: %v", err)
	}
}

// TestRelayAgain: nothing is lost or repeated between two clients in turn, and a new
// one takes the place of an old one.
func TestRelayAgain(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	b.call("box_create_session", spec("s", nil))
	b.launch("s", "p", "sh", "-c", `while read -r l; do echo "got $l"; done`)
	for i := range 3 {
		ws := b.attach("s", "p")
		say(t, ws, fmt.Sprint(i))
		if got := next(t, ws); got != fmt.Sprintf("got %d\n", i) {
			t.Errorf("%q", got)
		}
		ws.Close()
	}
	first := b.attach("s", "p")
	say(t, first, "first")
	if got := next(t, first); got != "got first\n" {
		t.Errorf("%q", got)
	}
	second := b.attach("s", "p")
	if messages, code := rest(t, first); len(messages) != 0 || code != websocket.CloseNormalClosure {
		t.Errorf("the first got %q and code %d", messages, code)
	}
	say(t, second, "second")
	if got := next(t, second); got != "got second\n" {
		t.Errorf("%q", got)
	}
	if !b.process("s", "p").Attached {
		t.Error("nobody is said to be attached")
	}
	b.call("box_stop_managed_process", object{"session_id": "s", "process_id": "p"})
	if _, code := rest(t, second); code != websocket.CloseNormalClosure {
		t.Errorf("code %d", code)
	}
}

// TestRelayRefusals: a client that may not attach gets an answer, but no connection.
func TestRelayRefusals(t *testing.T) {
	anyKernel(t)
	w := begin(t)
	d := w.dialer()
	at := Context{"i", "w", 1}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	refused := func(what string, status int, h http.Header, session, id string) string {
		t.Helper()
		var got *StatusError
		if ws, err := d.Relay(ctx, h, session, id); !errors.As(err, &got) || got.Status != status {
			t.Errorf("%s: %v, want %d", what, err, status)
			if ws != nil {
				ws.Close()
			}
			return ""
		}
		return got.Body
	}
	refused("before any RPC", 401, at.Headers(), physical("s"), "p")
	b := w.bot("i", "w")
	refused("before the generation is known", 401, at.Headers(), physical("s"), "p")
	b.call("box_create_session", spec("s", nil))
	b.launch("s", "p", "cat")
	for what, h := range map[string]http.Header{
		"no headers": {}, "another instance": Context{"j", "w", 1}.Headers(), "another workspace": Context{"i", "v", 1}.Headers(),
		"another generation": Context{"i", "w", 2}.Headers(), "generation 0": Context{"i", "w", 0}.Headers(),
	} {
		refused(what, 401, h, physical("s"), "p")
	}
	odd := at.Headers()
	odd.Set("X-LangBot-Placement-Generation", "01")
	refused("a generation with a leading zero", 401, odd, physical("s"), "p")
	refused("a session of another generation", 401, at.Headers(), "ws-"+namespaceIW+"-g2-s", "p")
	if body := refused("an unknown session", 400, at.Headers(), physical("never"), "p"); !strings.Contains(body, `"BoxSessionNotFoundError"`) {
		t.Errorf("%q", body)
	}
	if body := refused("an unknown process", 400, at.Headers(), physical("s"), "never"); !strings.Contains(body, `"BoxManagedProcessNotFoundError"`) {
		t.Errorf("%q", body)
	}
	refused("no process of the default name", 400, at.Headers(), physical("s"), "default")
	ws := b.attach("s", "p")
	say(t, ws, "x")
	if got := next(t, ws); got != "x\n" {
		t.Errorf("%q", got)
	}
}

// TestRelayBulk: a long stream of lines arrives whole and in order.
func TestRelayBulk(t *testing.T) {
	anyKernel(t)
	b := begin(t).bot("i", "w")
	b.call("box_create_session", spec("s", nil))
	b.launch("s", "p", "sh", "-c", "read -r go; seq 1 1000000")
	ws := b.attach("s", "p")
	say(t, ws, "go")
	messages, code := rest(t, ws)
	h := sha256.New()
	for i, m := range messages {
		if want := fmt.Sprintf("%d\n", i+1); m != want {
			t.Fatalf("message %d is %q", i, m)
		}
		h.Write([]byte(m))
	}
	if len(messages) != 1000000 || code != websocket.CloseNormalClosure {
		t.Errorf("%d messages, code %d", len(messages), code)
	}
	if !bytes.Equal(h.Sum(nil), sumOfSeq(1000000)) {
		t.Error("other bytes arrived than were sent")
	}
}

func sumOfSeq(n int) []byte {
	h := sha256.New()
	for i := range n {
		fmt.Fprintln(h, i+1)
	}
	return h.Sum(nil)
}
