package preview

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
)

// watchedConn calls closing before it closes, and wrote before it writes.
type watchedConn struct {
	*net.TCPConn
	closing func()
	wrote   func([]byte)
}

func (c *watchedConn) Close() error {
	if c.closing != nil {
		c.closing()
	}
	return c.TCPConn.Close()
}

func (c *watchedConn) Write(p []byte) (int, error) {
	if c.wrote != nil {
		c.wrote(p)
	}
	return c.TCPConn.Write(p)
}

// watchedListener gives its connections the function wrote.
type watchedListener struct {
	net.Listener
	wrote func([]byte)
}

func (l watchedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &watchedConn{TCPConn: c.(*net.TCPConn), wrote: l.wrote}, nil
}

// TestTunnelEndsAtTheBoxFirst: when the visit ends, the connection to the box is reset before the
// client is told, which may take long.
func TestTunnelEndsAtTheBoxFirst(t *testing.T) {
	box, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer box.Close()
	var told atomic.Bool // the client has got a close frame
	closed := make(chan bool, 1)
	p := New(Options{Dial: func(ctx context.Context, _ Target) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, "tcp", box.Addr().String())
		if err != nil {
			return nil, err
		}
		return &watchedConn{TCPConn: c.(*net.TCPConn), closing: func() {
			select {
			case closed <- told.Load():
			default: // again
			}
		}}, nil
	}})
	visit, end := context.WithCancel(t.Context())
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.ServeTunnel(w, r.WithContext(visit), lab)
	}))
	front.Listener = watchedListener{front.Listener, func(b []byte) {
		if b[0] == 0x88 { // final frame, opcode 8: RFC 6455, 5.2
			told.Store(true)
		}
	}}
	front.Start()
	t.Cleanup(func() { end(); p.Close(); front.CloseClientConnections(); front.Close() })
	ws, resp, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(front.URL, "http"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	defer ws.Close()
	ws.WriteMessage(websocket.BinaryMessage, []byte("x"))
	inside, err := box.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer inside.Close()
	if _, err := io.ReadFull(inside, make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	end()
	if <-closed {
		t.Error("the client was told before the connection to the box was reset")
	}
	if _, err := inside.Read(make([]byte, 1)); err == nil || errors.Is(err, io.EOF) {
		t.Errorf("the box saw %v, want a reset", err)
	}
}

// stuckConn is the connection of a client that accepts one write.
type stuckConn struct {
	*net.TCPConn
	writes  int
	stuck   chan struct{} // closed when a write waits
	expired chan struct{} // closed by a deadline in the past, or Close
	once    sync.Once
}

func (c *stuckConn) Write(p []byte) (int, error) {
	if c.writes++; c.writes == 1 {
		return c.TCPConn.Write(p)
	}
	if c.writes == 2 {
		close(c.stuck)
	}
	<-c.expired
	return 0, os.ErrDeadlineExceeded
}

func (c *stuckConn) SetWriteDeadline(t time.Time) error {
	if !t.IsZero() && t.Before(time.Now()) {
		c.once.Do(func() { close(c.expired) })
	}
	return nil
}

// TestCutDoesNotWait: the end of a visit ends a request whose client reads nothing at once, and not
// after Options.Stall.
func TestCutDoesNotWait(t *testing.T) {
	f := newFixture(t, config{box: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for {
			if _, err := w.Write(make([]byte, 64<<10)); err != nil {
				return
			}
		}
	})})
	visit, end := context.WithCancel(t.Context())
	done := make(chan struct{})
	front := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(done)
		f.proxy.ServeHTTP(w, r.WithContext(visit), Visit{Target: lab})
	}))
	stuck := &stuckConn{stuck: make(chan struct{}), expired: make(chan struct{})}
	front.Listener = stuckListener{front.Listener, stuck}
	front.Start()
	t.Cleanup(front.Close)
	resp, err := http.Get(front.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	<-stuck.stuck
	end()
	<-done // Options.Stall is a minute
	if _, err := io.Copy(io.Discard, resp.Body); err == nil {
		t.Error("the answer looks complete")
	}
}

// stuckListener makes the first connection stuck.
type stuckListener struct {
	net.Listener
	stuck *stuckConn
}

func (l stuckListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.stuck.TCPConn = c.(*net.TCPConn)
	return l.stuck, nil
}

func TestNoServiceWorkers(t *testing.T) {
	for _, prefix := range []string{"", "/v1/p"} {
		f := newFixture(t, config{prefix: prefix, box: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Error("the box was asked for a service worker") })})
		if res, _ := f.get(prefix+"/sw.js", "Service-Worker", "script"); res.StatusCode != 403 {
			t.Errorf("%q: %d", prefix, res.StatusCode)
		}
	}
}
