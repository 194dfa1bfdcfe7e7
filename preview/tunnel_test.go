package preview

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// forward starts a forwarded listener and returns its address. report learns of failures.
func (f *fixture) forward(report func(error)) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		f.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	d := TunnelDialer{URL: f.front.URL + "/tunnel"}
	wg.Go(func() {
		if err := Forward(ctx, l, d.Dial, report); !errors.Is(err, context.Canceled) {
			f.t.Error(err)
		}
	})
	f.t.Cleanup(func() { cancel(); wg.Wait() })
	return l.Addr().String()
}

func dialTCP(t testing.TB, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

// TestTunnelHalfClose: a server that answers after the end of its input gets both, with
// more bytes than all buffers hold.
func TestTunnelHalfClose(t *testing.T) {
	f := newFixture(t, config{tcp: func(c net.Conn) {
		all, _ := io.ReadAll(c)
		c.Write(all)
	}})
	c := dialTCP(t, f.forward(func(err error) { t.Error(err) }))
	sent, _ := io.ReadAll(io.LimitReader(pattern{}, 8<<20))
	if _, err := c.Write(sent); err != nil {
		t.Fatal(err)
	}
	c.CloseWrite()
	if got, err := io.ReadAll(c); err != nil || !bytes.Equal(got, sent) {
		t.Errorf("%d bytes of %d, %v", len(got), len(sent), err)
	}
}

// TestTunnelServerEndsFirst: the client still may write.
func TestTunnelServerEndsFirst(t *testing.T) {
	got := make(chan string, 1)
	f := newFixture(t, config{tcp: func(c net.Conn) {
		io.WriteString(c, "bye")
		c.(*net.TCPConn).CloseWrite()
		all, _ := io.ReadAll(c)
		got <- string(all)
	}})
	c := dialTCP(t, f.forward(func(err error) { t.Error(err) }))
	if all, err := io.ReadAll(c); string(all) != "bye" || err != nil {
		t.Errorf("%q, %v", all, err)
	}
	io.WriteString(c, "late")
	c.CloseWrite()
	if s := <-got; s != "late" {
		t.Errorf("%q", s)
	}
}

// TestTunnelBreaks: a stream that is cut never looks complete.
func TestTunnelBreaks(t *testing.T) {
	for _, c := range []struct {
		name string
		cut  func(f *fixture, box *net.TCPConn)
	}{
		{"reset by the box", func(_ *fixture, box *net.TCPConn) { box.SetLinger(0); box.Close() }},
		{"forgotten", func(f *fixture, _ *net.TCPConn) { f.proxy.Forget(lab.Tenant, lab.Session) }},
		{"server closed", func(f *fixture, _ *net.TCPConn) { f.proxy.Close() }},
	} {
		boxes := make(chan *net.TCPConn)
		release := make(chan struct{})
		f := newFixture(t, config{tcp: func(c net.Conn) { io.WriteString(c, "x"); boxes <- c.(*net.TCPConn); <-release }})
		reports := make(chan error, 1)
		conn := dialTCP(t, f.forward(func(err error) { reports <- err }))
		box := <-boxes
		conn.Read(make([]byte, 1))
		c.cut(f, box)
		if _, err := conn.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%s: %v", c.name, err)
		}
		if err := <-reports; !websocket.IsCloseError(err, websocket.CloseInternalServerErr) {
			t.Errorf("%s: reported %v", c.name, err)
		}
		close(release)
	}
}

// TestTunnelClientResets: the box sees a reset too.
func TestTunnelClientResets(t *testing.T) {
	got := make(chan error, 1)
	f := newFixture(t, config{tcp: func(c net.Conn) {
		io.WriteString(c, "x")
		_, err := io.ReadAll(c)
		got <- err
	}})
	c := dialTCP(t, f.forward(nil))
	c.Read(make([]byte, 1))
	c.SetLinger(0)
	c.Close()
	if err := <-got; !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%v", err)
	}
}

func TestTunnelRefused(t *testing.T) {
	var dial atomic.Value
	f := newFixture(t, config{Options: Options{MaxPerSession: 1, Patience: time.Hour, Dial: func(context.Context, Target) (net.Conn, error) {
		return nil, dial.Load().(error)
	}}, tcp: func(net.Conn) {}})
	reports := make(chan error, 1)
	addr := f.forward(func(err error) { reports <- err })
	for _, c := range []struct {
		err  error
		want string
	}{
		{&net.OpError{Err: syscall.ECONNREFUSED}, "Nothing listens on port 3000"},
		{&net.OpError{Err: errors.New("box 10.9.8.7 is lost")}, "The session is not running"},
	} {
		dial.Store(c.err)
		conn, err := net.Dial("tcp", addr) // the reset may be faster
		if err == nil {
			_, err = conn.Read(make([]byte, 1))
			conn.Close()
		}
		if !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("%v", err)
		}
		refusal, ok := errors.AsType[*TunnelError](<-reports)
		if !ok || refusal.Status != 502 || !strings.Contains(refusal.Text, c.want) || strings.Contains(refusal.Text, "10.9") {
			t.Errorf("%v", refusal)
		}
	}
	if res, _ := f.get("/tunnel"); res.StatusCode != 400 {
		t.Errorf("without upgrade: %d", res.StatusCode)
	}
	_, res, err := f.websocket("/tunnel", http.Header{"Origin": {"https://evil.example"}})
	if err == nil {
		t.Fatalf("a foreign page has a tunnel: %v", res)
	}
}

// TestTunnelProtocol: messages that no client of ours sends end the tunnel with a reset of
// the box's connection.
func TestTunnelProtocol(t *testing.T) {
	const text, bin = websocket.TextMessage, websocket.BinaryMessage
	for _, c := range []struct {
		name string
		send func(*websocket.Conn)
		ok   bool // the box sees an end, and no reset
	}{
		{"other text", func(ws *websocket.Conn) { ws.WriteMessage(text, []byte("eo")) }, false},
		{"long text", func(ws *websocket.Conn) { ws.WriteMessage(text, []byte("eof ")) }, false},
		{"empty text", func(ws *websocket.Conn) { ws.WriteMessage(text, nil) }, false},
		{"large message", func(ws *websocket.Conn) { ws.WriteMessage(bin, make([]byte, maxMessage+1)) }, false},
		{"close without eof", func(ws *websocket.Conn) {
			ws.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1000, ""), time.Now().Add(time.Minute))
		}, false},
		{"no close", func(ws *websocket.Conn) { ws.NetConn().Close() }, false},
		{"eof", func(ws *websocket.Conn) { ws.WriteMessage(bin, nil); ws.WriteMessage(text, []byte("eof")) }, true},
	} {
		got := make(chan error, 1)
		f := newFixture(t, config{tcp: func(c net.Conn) { _, err := io.ReadAll(c); got <- err }})
		ws, _, err := f.websocket("/tunnel", nil)
		if err != nil {
			t.Fatal(err)
		}
		c.send(ws)
		if err := <-got; (err == nil) != c.ok {
			t.Errorf("%s: %v", c.name, err)
		}
		if c.ok {
			for _, want := range []string{"eof", "close"} {
				_, m, err := ws.ReadMessage()
				if want == "eof" && string(m) != "eof" || want == "close" && !websocket.IsCloseError(err, 1000) {
					t.Errorf("%s: want %s: %q, %v", c.name, want, m, err)
				}
			}
			if ws.WriteMessage(bin, []byte("late")) == nil {
				if _, _, err := ws.ReadMessage(); err == nil {
					t.Error("bytes after the end are accepted")
				}
			}
		}
	}
}

// TestTunnelTwoEnds: the second "eof" of a peer does not stand for the other direction's.
func TestTunnelTwoEnds(t *testing.T) {
	release := make(chan struct{})
	f := newFixture(t, config{tcp: func(net.Conn) { <-release }})
	defer close(release)
	ws, _, err := f.websocket("/tunnel", nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		ws.WriteMessage(websocket.TextMessage, []byte(eofText))
	}
	if _, m, err := ws.ReadMessage(); !websocket.IsCloseError(err, websocket.CloseInternalServerErr) {
		t.Errorf("%q, %v", m, err)
	}
}

// TestTunnelQuiet: a client that neither sends nor answers pings is given up; one that
// answers keeps a silent tunnel.
func TestTunnelQuiet(t *testing.T) {
	ended := make(chan struct{})
	f := newFixture(t, config{Options: Options{Idle: 200 * time.Millisecond}, tcp: func(c net.Conn) {
		io.Copy(io.Discard, c)
		close(ended)
	}})
	ws, _, err := f.websocket("/tunnel", nil)
	if err != nil {
		t.Fatal(err)
	}
	stop := make(chan struct{})
	var alive sync.WaitGroup
	alive.Go(func() {
		for range 10 {
			select {
			case <-ended:
				t.Error("a living client was given up")
				return
			case <-time.After(50 * time.Millisecond):
				ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(time.Second))
			}
		}
		close(stop)
	})
	alive.Wait()
	<-ended
	<-stop
}
