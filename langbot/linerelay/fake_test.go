package linerelay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/testutil"
)

// ring is an engine.Output in memory, and the process that writes to it.
type ring struct {
	drop bool // overwrite what was not released

	mu       sync.Mutex
	buf      []byte
	end      int64
	released int64
	closed   bool
	err      error // of ReadAt
	reads    int
	moved    chan struct{}
}

func newRing(size int) *ring { return &ring{buf: make([]byte, size), moved: make(chan struct{})} }

func (r *ring) changeLocked() {
	close(r.moved)
	r.moved = make(chan struct{})
}

func (r *ring) change(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
	r.changeLocked()
}

func (r *ring) Bounds() (int64, int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return max(r.end-int64(len(r.buf)), 0), r.end
}

func (r *ring) ReadAt(ctx context.Context, p []byte, off int64) (int, int64, error) {
	for {
		r.mu.Lock()
		off = max(off, r.end-int64(len(r.buf)))
		r.reads++
		if r.err != nil {
			defer r.mu.Unlock()
			return 0, off, r.err
		}
		if off < r.end {
			defer r.mu.Unlock()
			n := min(int64(len(p)), r.end-off)
			m := copy(p[:n], r.buf[off%int64(len(r.buf)):])
			copy(p[m:n], r.buf)
			return int(n), off, nil
		}
		closed, moved := r.closed, r.moved
		r.mu.Unlock()
		if closed {
			return 0, off, io.EOF
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return 0, off, context.Cause(ctx)
		}
	}
}

func (r *ring) Release(off int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if off > r.released {
		r.released = min(off, r.end)
		r.changeLocked()
	}
}

func (r *ring) Released() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.released
}

var errStop = errors.New("told to stop")

// write is called by the process. It waits for room, unless drop is set.
func (r *ring) write(stop <-chan struct{}, p []byte) error {
	for len(p) > 0 {
		r.mu.Lock()
		room := int64(len(r.buf)) - (r.end - r.released)
		if r.drop {
			room = int64(len(r.buf))
		}
		n := min(room, int64(len(p)))
		m := copy(r.buf[r.end%int64(len(r.buf)):], p[:n])
		copy(r.buf, p[m:n])
		r.end += n
		p = p[n:]
		moved := r.moved
		if n > 0 {
			r.changeLocked()
		}
		r.mu.Unlock()
		if n == 0 {
			select {
			case <-moved:
			case <-stop:
				return errStop
			}
		}
	}
	return nil
}

func (r *ring) print(text string) { r.write(nil, []byte(text)) }

// sink is an engine.Input in memory. The process reads up to the offset allow.
type sink struct {
	mu     sync.Mutex
	got    bytes.Buffer
	allow  int64 // negative: everything
	broken bool
	writes int
	moved  chan struct{}
}

func newSink() *sink { return &sink{allow: -1, moved: make(chan struct{})} }

func (s *sink) Write(ctx context.Context, off int64, p []byte) error {
	s.change(func() { s.writes++ })
	for {
		s.mu.Lock()
		have := int64(s.got.Len())
		if off > have {
			defer s.mu.Unlock()
			return fmt.Errorf("gap: %d after %d", off, have)
		}
		p, off = p[min(have-off, int64(len(p))):], have
		n := int64(len(p))
		if s.allow >= 0 {
			n = min(n, s.allow-have)
		}
		if s.broken {
			defer s.mu.Unlock()
			return fmt.Errorf("writing: %w", syscall.EPIPE)
		}
		s.got.Write(p[:n])
		moved, done := s.moved, n == int64(len(p))
		if n > 0 {
			s.changeLocked()
		}
		s.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

func (s *sink) Accepted() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.got.Len())
}

func (s *sink) Close(context.Context) error { return os.ErrClosed }

func (s *sink) changeLocked() {
	close(s.moved)
	s.moved = make(chan struct{})
}

func (s *sink) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	s.changeLocked()
}

func (s *sink) text() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.got.String()
}

// awaitText waits until the process has read want and nothing else.
func (s *sink) awaitText(t testing.TB, want string) {
	t.Helper()
	late := time.After(testutil.Patience())
	for {
		s.mu.Lock()
		got, moved := s.got.String(), s.moved
		s.mu.Unlock()
		if got == want {
			return
		}
		if !strings.HasPrefix(want, got) {
			t.Fatalf("the process has read %.200q (%d bytes), want %.200q (%d bytes)", got, len(got), want, len(want))
		}
		select {
		case <-moved:
		case <-late:
			t.Fatalf("the process has read %.200q (%d bytes), want %.200q (%d bytes)", got, len(got), want, len(want))
		}
	}
}

// proc is a process whose streams are in memory.
type proc struct {
	in         *sink
	out        *ring
	done, gone chan struct{}
	touched    chan struct{} // has an element after a Touch
}

func newProc(history int) *proc {
	return &proc{in: newSink(), out: newRing(history), done: make(chan struct{}), gone: make(chan struct{}), touched: make(chan struct{}, 1)}
}

func (p *proc) source() Source {
	return Source{Stdin: p.in, Stdout: p.out, Done: p.done, Gone: p.gone, Touch: func() {
		select {
		case p.touched <- struct{}{}:
		default:
		}
	}}
}

// end ends the process.
func (p *proc) end() {
	p.out.change(func() { p.out.closed = true })
	close(p.done)
}

// server is a relay of a process behind HTTP on loopback.
type server struct {
	t     testing.TB
	proc  *proc
	relay *Relay
	http  *httptest.Server
}

func serve(t testing.TB, p *proc, change func(*times)) *server {
	return serveSource(t, p, p.source(), change)
}

func serveSource(t testing.TB, p *proc, src Source, change func(*times)) *server {
	s := &server{t: t, proc: p, relay: New(src)}
	if change != nil {
		change(&s.relay.times)
	}
	s.http = httptest.NewServer(http.HandlerFunc(s.relay.Serve))
	t.Cleanup(func() {
		s.relay.Close(1001, "test over")
		s.http.Close()
	})
	return s
}

// client is a WebSocket client.
type client struct {
	*websocket.Conn
	t testing.TB
}

func (s *server) dial() *client {
	s.t.Helper()
	d := websocket.Dialer{ReadBufferSize: 64 << 10, HandshakeTimeout: testutil.Patience()}
	c, _, err := d.Dial(strings.Replace(s.http.URL, "http", "ws", 1), nil)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	c.SetReadDeadline(time.Now().Add(testutil.Patience()))
	return &client{c, s.t}
}

// next returns the next message.
func (c *client) next() string {
	c.t.Helper()
	kind, text, err := c.ReadMessage()
	if err != nil || kind != websocket.TextMessage {
		c.t.Fatalf("reading a message: kind %d, %v", kind, err)
	}
	return string(text)
}

func (c *client) wantMessages(want ...string) {
	c.t.Helper()
	for _, w := range want {
		if got := c.next(); got != w {
			c.t.Fatalf("got %.200q (%d bytes), want %.200q (%d bytes)", got, len(got), w, len(w))
		}
	}
}

// rest returns all messages up to the close frame, and the close frame.
func (c *client) rest() (messages []string, closed *websocket.CloseError) {
	c.t.Helper()
	for {
		_, text, err := c.ReadMessage()
		if err != nil {
			if !errors.As(err, &closed) {
				c.t.Fatalf("after %d messages: %v", len(messages), err)
			}
			return messages, closed
		}
		messages = append(messages, string(text))
	}
}

func (c *client) wantClose(code int, reason string) {
	c.t.Helper()
	if rest, closed := c.rest(); len(rest) != 0 || closed.Code != code || closed.Text != reason {
		c.t.Errorf("%d more messages, close %d %q, want none and %d %q", len(rest), closed.Code, closed.Text, code, reason)
	}
}

func (c *client) send(text string) {
	c.t.Helper()
	if err := c.WriteMessage(websocket.TextMessage, []byte(text)); err != nil {
		c.t.Fatal(err)
	}
}

// await waits until ok is true, for a state that no event announces.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testutil.Patience()); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for %s in vain", what)
		}
	}
}
