package bridge

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

func TestMessages(t *testing.T) {
	d := newDaemon(t)
	long := strings.Repeat("é\n\"", 1<<20)
	text, err := json.Marshal(long)
	if err != nil {
		t.Fatal(err)
	}
	d.reply = func(r request) [][]byte {
		if r.Action == "long" {
			return [][]byte{fmt.Appendf(nil, `{"seq_id":%s,"code":0,"message":"success","data":{"text":%s}}`, r.Seq, r.Data)}
		}
		return [][]byte{r.success()}
	}
	r := start(t, d, nil)
	r.send(`{"seq_id":1,"action":"__ping","data":{}}`)
	if got := r.next(); got != `{"seq_id":1,"code":0,"message":"success","data":{}}` {
		t.Errorf("got %s", got)
	}
	io.WriteString(r.in, "\nnot json\n[1]\n") // skipped
	r.send(fmt.Sprintf(`{"seq_id":2,"action":"long","data":%s}`, text))
	var answer struct{ Data struct{ Text string } }
	if err := json.Unmarshal([]byte(r.next()), &answer); err != nil || answer.Data.Text != long {
		t.Errorf("%d bytes came back, %v", len(answer.Data.Text), err)
	}
	r.in.Close()
	if err := r.end(); err != nil {
		t.Errorf("end: %v", err)
	}
	if got := d.seen(); !slices.Equal(got, []string{"__ping", "long", "box_shutdown"}) {
		t.Errorf("the daemon saw %q", got)
	}
	if msg, ok := <-r.messages; ok {
		t.Errorf("another message: %s", msg)
	}
}

// TestInit: the configuration is sent first. The client sees neither the answer to it nor the
// answer to our own box_shutdown, but it sees answers that are still under way at the end.
func TestInit(t *testing.T) {
	for _, refused := range []bool{false, true} {
		d := newDaemon(t)
		d.reply = func(r request) [][]byte {
			switch r.Action {
			case "box_init":
				if refused {
					return [][]byte{fmt.Appendf(nil, `{"seq_id":%s,"code":1,"message":"ValueError: no good","data":{}}`, r.Seq)}
				}
			case "box_exec":
				return nil
			case "box_shutdown":
				return [][]byte{[]byte(`{"seq_id":5,"code":1,"message":"BoxError: removed` + seqShutdown + `","data":{}}`), r.success()}
			}
			return [][]byte{r.success()}
		}
		r := start(t, d, func(o *Options) { o.Init = json.RawMessage(`{"limits":{"max_sessions":3}}`) })
		r.send(`{"seq_id":5,"action":"box_exec","data":{}}`)
		r.in.Close()
		if got := r.next(); !strings.Contains(got, "removed") {
			t.Errorf("got %s", got)
		}
		if err := r.end(); err != nil {
			t.Errorf("end: %v", err)
		}
		if got := d.seen(); !slices.Equal(got, []string{"box_init", "box_exec", "box_shutdown"}) {
			t.Errorf("the daemon saw %q", got)
		}
		if got := string(d.requests[0].Data); got != `{"limits":{"max_sessions":3}}` {
			t.Errorf("box_init with %s", got)
		}
		if (len(r.warnings) > 0) != refused {
			t.Errorf("refused %v: %d warnings", refused, len(r.warnings))
		}
		if msg, ok := <-r.messages; ok {
			t.Errorf("another message: %s", msg)
		}
	}
}

// TestEnds: sessions are removed whenever the daemon is available.
func TestEnds(t *testing.T) {
	for _, c := range []struct {
		name     string
		do       func(r *run, d *daemon)
		reply    func(r request) [][]byte
		shutdown bool
		err      string // "" means none
	}{
		{"end of stdin", func(r *run, _ *daemon) { r.in.Close() }, nil, true, ""},
		{"signal", func(r *run, _ *daemon) { r.cancel() }, nil, true, ""},
		{"end of stdin in a message", func(r *run, _ *daemon) {
			io.WriteString(r.in, `{"type":"chunk_start","total_size":9}`+"\n")
			r.in.Close()
		}, nil, true, "stdin: unexpected EOF"},
		{"broken framing", func(r *run, _ *daemon) { io.WriteString(r.in, `{"type":"chunk_end"}`+"\n") }, nil, true, "stdin: reading a message in pieces"},
		{"the daemon closes", func(_ *run, d *daemon) {
			d.ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1001, "Box runtime shutting down"), time.Now().Add(time.Second))
		}, nil, false, "the connection to the daemon is lost: it was closed with 1001 Box runtime shutting down"},
		{"the daemon dies", func(_ *run, d *daemon) { d.ws.NetConn().Close() }, nil, false, "the connection to the daemon is lost"},
		{"the daemon dies during the end", func(r *run, _ *daemon) { r.in.Close() }, func(request) [][]byte { panic(nil) }, true, "the connection to the daemon is lost"},
		{"the daemon cannot", func(r *run, _ *daemon) { r.in.Close() }, func(r request) [][]byte {
			return [][]byte{fmt.Appendf(nil, `{"seq_id":%s,"code":1,"message":"BoxError: no","data":{}}`, r.Seq)}
		}, true, "removing the sessions: BoxError: no"},
		{"the daemon does not answer", func(r *run, _ *daemon) { r.in.Close() }, func(r request) [][]byte { return nil }, true, "the connection to the daemon is lost"},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDaemon(t)
			r := start(t, d, func(o *Options) { o.Patience = time.Second })
			r.send(`{"seq_id":1,"action":"__ping","data":{}}`)
			r.next()
			if c.reply != nil {
				reply := c.reply
				d.mu.Lock()
				d.reply = reply
				if c.name == "the daemon dies during the end" {
					d.reply = func(request) [][]byte { d.ws.NetConn().Close(); return nil }
				}
				d.mu.Unlock()
			}
			c.do(r, d)
			err := r.end()
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.HasPrefix(err.Error(), c.err)) {
				t.Errorf("got %v, want %q", err, c.err)
			}
			if got := errors.Is(err, ErrLost); got != strings.HasPrefix(c.err, ErrLost.Error()) {
				t.Errorf("%v: ErrLost: %v", err, got)
			}
			if got := slices.Contains(d.seen(), "box_shutdown"); got != c.shutdown {
				t.Errorf("box_shutdown: %v, want %v", got, c.shutdown)
			}
		})
	}
}

// TestStuckParent: a parent that keeps stdout open without reading it delays the end of the
// bridge no longer than a daemon that does not answer.
func TestStuckParent(t *testing.T) {
	d := newDaemon(t)
	out, w := io.Pipe()
	t.Cleanup(func() { out.Close() })
	r := start(t, d, func(o *Options) { o.Out, o.Patience = w, time.Second })
	r.send(`{"seq_id":1,"action":"__ping","data":{}}`)
	for !slices.Contains(d.seen(), "__ping") { // answered before box_shutdown, then
		time.Sleep(time.Millisecond)
	}
	r.cancel()
	if err := r.end(); err == nil || !strings.HasPrefix(err.Error(), "stdout: ") {
		t.Errorf("got %v", err)
	}
	if !slices.Contains(d.seen(), "box_shutdown") {
		t.Error("the sessions were not removed")
	}
}

// TestNobodyReads: the sessions of a parent that is gone are removed.
func TestNobodyReads(t *testing.T) {
	d := newDaemon(t)
	out, w := io.Pipe()
	out.Close()
	r := start(t, d, func(o *Options) { o.Out = w })
	for range 3 {
		r.send(`{"seq_id":1,"action":"__ping","data":{}}`)
	}
	r.in.Close()
	if err := r.end(); err != nil {
		t.Error(err)
	}
	if len(r.warnings) > 1 {
		t.Errorf("%d warnings", len(r.warnings))
	}
}

func TestRefused(t *testing.T) {
	d := newDaemon(t)
	err := start(t, d, func(o *Options) { o.Instance = "other" }).end()
	if refused := (*StatusError)(nil); !errors.As(err, &refused) || refused.Status != 401 || !strings.Contains(refused.Text, "other") {
		t.Errorf("got %v", err)
	}
	d.http.Close()
	if err := start(t, d, nil).end(); err == nil || errors.Is(err, ErrLost) {
		t.Errorf("got %v", err)
	}
}
