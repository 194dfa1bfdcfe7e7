package linerelay

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
)

// pipeWriter is the ResponseWriter of a request that came through a pipe.
type pipeWriter struct {
	conn   net.Conn
	header http.Header
}

func (w *pipeWriter) Header() http.Header         { return w.header }
func (w *pipeWriter) Write(p []byte) (int, error) { return w.conn.Write(p) }
func (w *pipeWriter) WriteHeader(int)             {}
func (w *pipeWriter) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return w.conn, bufio.NewReadWriter(bufio.NewReader(w.conn), bufio.NewWriter(w.conn)), nil
}

// piped runs f with a client of a relay, in a bubble with its own time.
func piped(t *testing.T, history int, f func(t *testing.T, p *proc, r *Relay, c *client)) {
	synctest.Test(t, func(t *testing.T) {
		p := newProc(history)
		r := New(p.source())
		there, here := net.Pipe()
		served := make(chan struct{})
		go func() {
			defer close(served)
			req, err := http.ReadRequest(bufio.NewReader(there))
			if err == nil {
				r.Serve(&pipeWriter{there, http.Header{}}, req)
			}
		}()
		d := websocket.Dialer{NetDial: func(string, string) (net.Conn, error) { return here, nil }}
		ws, _, err := d.Dial("ws://relay", nil)
		if err != nil {
			t.Fatal(err)
		}
		f(t, p, r, &client{ws, t})
		ws.Close()
		r.Close(1000, "")
		<-served
	})
}

// messages returns the messages until the end of the connection, with the time of each since
// began.
func messages(c *client, began time.Time) <-chan string {
	out := make(chan string, 1000)
	go func() {
		defer close(out)
		for {
			_, m, err := c.ReadMessage()
			if err != nil {
				return
			}
			out <- fmt.Sprintf("%v %s", time.Since(began), m)
		}
	}()
	return out
}

// TestIdle: an incomplete line is sent after a while, and not before.
func TestIdle(t *testing.T) {
	type step struct {
		after time.Duration
		text  string
	}
	const ms = time.Millisecond
	long := strings.Repeat("x", fullBuffer+1)
	page := strings.Repeat("y", fullBuffer-2) + "\n"
	for _, c := range []struct {
		name  string
		steps []step
		want  []string
	}{
		{"prompt", []step{{0, "> "}}, []string{"50ms > "}},
		{"prompt behind lines", []step{{0, "a\nb\n> "}}, []string{"0s a\n", "0s b\n", "50ms > "}},
		{"each byte counts anew", []step{{0, "a"}, {49 * ms, "b"}, {49 * ms, "c"}}, []string{"148ms abc"}},
		{"the newline comes in time", []step{{0, "a"}, {49 * ms, "\n"}}, []string{"49ms a\n"}},
		{"the newline comes too late", []step{{0, "a"}, {51 * ms, "\n"}}, []string{"50ms a", "51ms \n"}},
		{"a cut character stays", []step{{0, "a\xe2\x82"}, {time.Hour, "\xac"}}, []string{"50ms a", "1h0m0.05s €"}},
		{"nothing but a part of a character", []step{{0, "\xc3"}, {time.Hour, "\xa9\n"}}, []string{"1h0m0s é\n"}},
		{"document", []step{{0, `{"a":`}, {999 * ms, "1}"}, {999 * ms, "\n"}}, []string{"1.998s {\"a\":1}\n"}},
		{"document without an end", []step{{0, `{"a":`}}, []string{"1s {\"a\":"}},
		{"more than is written at once", []step{{0, long}, {999 * ms, "\n"}}, []string{"999ms " + long + "\n"}},
		{"more, without an end", []step{{0, long}}, []string{"1s " + long}},
		{"the end of a full buffer", []step{{0, page + "y"}, {999 * ms, "z\n"}}, []string{"0s " + page, "999ms yz\n"}},
		{"a full buffer, in two reads", []step{{0, "a\n"}, {40 * ms, page[2:] + "yy"}, {999 * ms, "\n"}}, []string{"0s a\n", "40ms " + page[2:], "1.039s yy\n"}},
		{"prompt after a page", []step{{0, page}, {999 * ms, "> "}}, []string{"0s " + page, "1.999s > "}},
		{"prompt after a page and a pause", []step{{0, page}, {1000 * ms, "> "}}, []string{"0s " + page, "1.05s > "}},
		{"drops", func() (s []step) {
			for range 60 {
				s = append(s, step{30 * ms, "."})
			}
			return s
		}(), []string{"1.03s " + strings.Repeat(".", 34), "1.85s " + strings.Repeat(".", 26)}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var got []string
			piped(t, 64<<10, func(t *testing.T, p *proc, _ *Relay, ws *client) {
				out := messages(ws, time.Now())
				for _, s := range c.steps {
					time.Sleep(s.after)
					synctest.Wait()
					p.out.print(s.text)
				}
				time.Sleep(5 * time.Second)
				synctest.Wait()
				for len(out) > 0 {
					got = append(got, <-out)
				}
			})
			if !slices.Equal(got, c.want) {
				t.Errorf("got %.100q, want %.100q", got, c.want)
			}
		})
	}
}

// TestNoPolling: an idle relay only pings.
func TestNoPolling(t *testing.T) {
	piped(t, 64<<10, func(t *testing.T, p *proc, _ *Relay, c *client) {
		pings := 0
		c.SetPingHandler(func(string) error {
			pings++
			return c.WriteControl(websocket.PongMessage, nil, time.Now().Add(time.Second))
		})
		out := messages(c, time.Now())
		p.out.print("x\n")
		<-out
		synctest.Wait()
		before := p.out.reads
		time.Sleep(time.Hour)
		synctest.Wait()
		if p.out.reads != before || pings != 80 {
			t.Errorf("in an hour: %d reads, %d pings, want none and 80", p.out.reads-before, pings)
		}
		<-p.touched // for the first line
		p.out.print("a\n")
		p.out.print("b\n")
		<-out
		<-out
		<-p.touched
		synctest.Wait()
		if len(p.touched) != 0 {
			t.Error("touched twice in a second")
		}
	})
}

// TestSilent: a client that is gone is noticed when a pong is missing.
func TestSilent(t *testing.T) {
	piped(t, 64<<10, func(t *testing.T, p *proc, _ *Relay, c *client) {
		c.SetPingHandler(func(string) error { return nil })
		began := time.Now()
		out := messages(c, began)
		<-out // closed
		if d := time.Since(began); d != 45*time.Second {
			t.Errorf("dropped after %v", d)
		}
	})
}

// TestHolding: while a process does not read, the relay does not read from its client, so a
// missing pong proves nothing.
func TestHolding(t *testing.T) {
	piped(t, 64<<10, func(t *testing.T, p *proc, r *Relay, c *client) {
		c.SetPingHandler(func(string) error { return nil }) // a pong would have to wait behind the messages
		p.in.change(func() { p.in.allow = 3 })
		out := messages(c, time.Now())
		message, sent := strings.Repeat("m", 99999), 0
		go func() {
			for c.WriteMessage(websocket.TextMessage, []byte(message)) == nil {
				sent++
			}
		}()
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := int64(sent * (len(message) + 1)); n < maxQueued || n > maxQueued+2*100_000 || p.in.Accepted() != 3 {
			t.Errorf("%d bytes were taken of the client, %d of those by the process", n, p.in.Accepted())
		}
		p.out.print("alive\n")
		if got := <-out; got != "1h0m0s alive\n" {
			t.Errorf("got %q", got)
		}
		c.Close() // the relay notices nevertheless
		for range out {
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if r.Attached() {
			t.Error("still attached to one that is gone")
		}
	})
}

// TestSlowUpload: a message whose bytes keep arriving is a sign of life, although no pong
// can come between them.
func TestSlowUpload(t *testing.T) {
	piped(t, 64<<10, func(t *testing.T, p *proc, _ *Relay, c *client) {
		go c.NetConn().Read(make([]byte, 1000)) // the ping, which is not answered
		c.NetConn().Write([]byte("\x81\xfe\x01\x00\x00\x00\x00\x00"))
		for range 256 {
			time.Sleep(10 * time.Second)
			c.NetConn().SetReadDeadline(time.Now().Add(time.Millisecond))
			c.NetConn().Read(make([]byte, 1000))
			if _, err := c.NetConn().Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
		}
		p.in.awaitText(t, strings.Repeat("x", 256)+"\n")
	})
}

// TestEndOfOutput: the client is told when the process has ended. The wait for a process
// that has closed its output and continues is bounded.
func TestEndOfOutput(t *testing.T) {
	for _, ends := range []bool{true, false} {
		piped(t, 64<<10, func(t *testing.T, p *proc, _ *Relay, c *client) {
			out := messages(c, time.Now())
			p.out.print("last")
			p.out.change(func() { p.out.closed = true })
			time.Sleep(1999 * time.Millisecond)
			synctest.Wait()
			if first := <-out; first != "0s last" {
				t.Errorf("got %q", first)
			}
			select {
			case _, ok := <-out:
				t.Errorf("closed too early: %v", !ok)
			default:
			}
			if ends {
				close(p.done)
			} else {
				time.Sleep(2 * time.Millisecond)
			}
			synctest.Wait()
			select {
			case m, ok := <-out:
				if ok {
					t.Errorf("another message: %q", m)
				}
			default:
				t.Errorf("ends %v: not closed", ends)
			}
		})
	}
}
