package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
)

// ring is an Output in memory, and the process that writes to it.
type ring struct {
	drop bool // overwrite what was not released

	mu       sync.Mutex
	buf      []byte
	end      int64
	released int64
	closed   bool
	err      error // of ReadAt
	moved    chan struct{}
}

func newRing(size int) *ring { return &ring{buf: make([]byte, size), moved: make(chan struct{})} }

func (r *ring) changeLocked() {
	close(r.moved)
	r.moved = make(chan struct{})
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
		if r.err != nil {
			defer r.mu.Unlock()
			return 0, off, r.err
		}
		if off < r.end {
			defer r.mu.Unlock()
			n := min(int64(len(p)), r.end-off)
			at := off % int64(len(r.buf))
			m := copy(p[:n], r.buf[at:])
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
			return 0, off, ctx.Err()
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
		at := r.end % int64(len(r.buf))
		m := copy(r.buf[at:], p[:n])
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

func (r *ring) Write(p []byte) (int, error) { return len(p), r.write(nil, p) }

func (r *ring) close() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.closed = true
	r.changeLocked()
}

func (r *ring) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
	r.changeLocked()
}

// sink is an Input in memory. The process reads up to the offset allow.
type sink struct {
	mu     sync.Mutex
	got    bytes.Buffer
	keep   bool // record the accepted bytes in got
	n      int64
	allow  int64 // negative: everything
	broken bool
	closed int
	moved  chan struct{}
	onData func(p []byte)
}

func newSink() *sink { return &sink{allow: -1, keep: true, moved: make(chan struct{})} }

func (s *sink) Write(ctx context.Context, off int64, p []byte) error {
	for {
		s.mu.Lock()
		if off > s.n {
			defer s.mu.Unlock()
			return fmt.Errorf("gap: %d after %d", off, s.n)
		}
		p = p[min(s.n-off, int64(len(p))):]
		n := int64(len(p))
		if s.allow >= 0 {
			n = min(n, s.allow-s.n)
		}
		if s.broken || s.closed > 0 {
			defer s.mu.Unlock()
			return map[bool]error{true: syscall.EPIPE, false: os.ErrClosed}[s.broken]
		}
		if s.keep {
			s.got.Write(p[:n])
		}
		s.n += n
		taken := p[:n]
		p, off = p[n:], s.n
		moved := s.moved
		s.mu.Unlock()
		if s.onData != nil && n > 0 {
			s.onData(taken)
		}
		if len(p) == 0 {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func (s *sink) Accepted() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.n
}

func (s *sink) Close(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed++
	s.changeLocked()
	return nil
}

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

// proc is a process whose streams are in memory.
type proc struct {
	in       *sink
	out, err *ring
	done     chan struct{}
	exit     Exit

	mu      sync.Mutex
	signals []syscall.Signal
	sizes   [][2]uint16
	touched int
}

func newProc(history int) *proc {
	return &proc{in: newSink(), out: newRing(history), err: newRing(history), done: make(chan struct{})}
}

func (p *proc) source() Source {
	return Source{
		Stdin: p.in, Stdout: p.out, Stderr: p.err, Done: p.done,
		Exit: func() Exit { return p.exit },
		Signal: func(s syscall.Signal) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			if s == 64 {
				return errors.New("no such process")
			}
			p.signals = append(p.signals, s)
			return nil
		},
		Resize: func(rows, cols uint16) error {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.sizes = append(p.sizes, [2]uint16{rows, cols})
			return nil
		},
		Touch: func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.touched++
		},
	}
}

// end ends the process with code.
func (p *proc) end(code int) {
	p.exit = Exit{Code: code, Verdict: "exited"}
	p.out.close()
	p.err.close()
	close(p.done)
}

// server is a relay of p behind HTTP on loopback.
type server struct {
	t    testing.TB
	proc *proc
	hub  *Hub
	http *httptest.Server
}

var all = Grant{Write: true, TakeOver: true}

func serve(t testing.TB, p *proc, o Options) *server {
	return serveSource(t, p, p.source(), o)
}

func serveSource(t testing.TB, p *proc, src Source, o Options) *server {
	if o.Linger == 0 {
		o.Linger = 2 * time.Second
	}
	s := &server{t: t, proc: p, hub: NewHub(src, o)}
	s.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := all
		if v := r.Header.Get("Grant"); v != "" {
			g = Grant{Write: v == "write"}
		}
		s.hub.Serve(w, r, g)
	}))
	t.Cleanup(func() {
		s.hub.Close()
		s.http.Close()
	})
	return s
}

func (s *server) options() DialOptions { return DialOptions{URL: s.http.URL} }

func (s *server) dial(change func(o *DialOptions)) *Client {
	s.t.Helper()
	c, err := s.tryDial(change)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { c.Close() })
	return c
}

func (s *server) tryDial(change func(o *DialOptions)) (*Client, error) {
	o := s.options()
	if change != nil {
		change(&o)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return Dial(ctx, o)
}

func asWriter(o *DialOptions)   { o.Write = true }
func asTakeOver(o *DialOptions) { o.Write, o.TakeOver = true, true }

// receiver is a Client or an Attachment.
type receiver interface{ Recv() (Event, error) }

// next returns the next event of type E, and drops StdinState before it.
func next[E Event](t testing.TB, r receiver) E {
	t.Helper()
	for {
		ev, err := r.Recv()
		if err != nil {
			t.Fatalf("waiting for a %T: %v", *new(E), err)
		}
		if e, ok := ev.(E); ok {
			return e
		}
		if _, ok := ev.(StdinState); !ok {
			t.Fatalf("got %#v, want a %T", ev, *new(E))
		}
	}
}

// collected is everything that a receiver returned.
type collected struct {
	out  [3]bytes.Buffer
	gaps []Gap
	exit []Exit
	err  error
}

func collect(r receiver) *collected {
	c := &collected{}
	for {
		ev, err := r.Recv()
		if err != nil {
			c.err = err
			return c
		}
		switch ev := ev.(type) {
		case Data:
			c.out[ev.Stream].Write(ev.Bytes)
		case Gap:
			c.gaps = append(c.gaps, ev)
		case Exited:
			c.exit = append(c.exit, ev.Exit)
		}
	}
}

// await waits until ok is true, for a state that other goroutines change and no event
// announces.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(testutil.Patience()); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited for %s in vain", what)
		}
	}
}

// cutter is a proxy in front of an address that cuts connections.
type cutter struct {
	l      net.Listener
	target string
	budget func() int64 // bytes that a connection may carry, both ways
	wg     sync.WaitGroup
}

func newCutter(t testing.TB, target string, budget func() int64) *cutter {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &cutter{l: l, target: target, budget: budget}
	c.wg.Go(c.accept)
	t.Cleanup(func() { l.Close(); c.wg.Wait() })
	return c
}

func (c *cutter) accept() {
	for {
		in, err := c.l.Accept()
		if err != nil {
			return
		}
		c.wg.Go(func() { c.carry(in) })
	}
}

func (c *cutter) carry(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", c.target)
	if err != nil {
		return
	}
	defer out.Close()
	left := c.budget()
	var mu sync.Mutex
	var wg sync.WaitGroup
	pipe := func(dst, src net.Conn) {
		defer dst.Close()
		defer src.Close()
		buf := make([]byte, 16<<10)
		for {
			n, err := src.Read(buf)
			mu.Lock()
			n = int(min(int64(n), left))
			left -= int64(n)
			cut := left == 0
			mu.Unlock()
			if _, werr := dst.Write(buf[:n]); err != nil || werr != nil || cut {
				return
			}
		}
	}
	wg.Go(func() { pipe(in, out) })
	wg.Go(func() { pipe(out, in) })
	wg.Wait()
}
