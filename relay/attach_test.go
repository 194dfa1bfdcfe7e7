package relay

import (
	"bytes"
	"context"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// attach attaches to s through a proxy that cuts connections after budget bytes.
func (s *server) attach(budget func() int64, change func(o *AttachOptions)) *Attachment {
	s.t.Helper()
	proxy := newCutter(s.t, strings.TrimPrefix(s.http.URL, "http://"), budget)
	o := AttachOptions{DialOptions: DialOptions{URL: "ws://" + proxy.l.Addr().String() + "/", Write: true}}
	if change != nil {
		change(&o)
	}
	a, err := Attach(s.t.Context(), o)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { a.Close() })
	return a
}

// TestCuts: connections are cut at random bytes, and now and then a new relay serves the
// same streams, as after a restart of the daemon.
func TestCuts(t *testing.T) {
	const cuts = 200
	p := newProc(128 << 10)
	s := serve(t, p, Options{Window: 128 << 10, StdinWindow: 16 << 10, Linger: 100 * time.Millisecond})
	var mu sync.RWMutex
	hub := s.hub
	s.http.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.RLock()
		h := hub
		mu.RUnlock()
		h.Serve(w, r, all)
	})
	restart := func() {
		mu.Lock()
		old := hub
		hub = NewHub(p.source(), old.o)
		mu.Unlock()
		old.Close()
	}
	defer func() { hub.Close() }()

	var made atomic.Int64
	enough := make(chan struct{})
	budget := func() int64 {
		switch n := made.Add(1); {
		case n == 1:
			return 50 << 10
		case n <= cuts:
			if n%20 == 0 {
				go restart()
			}
			return 1 + rand.Int64N(60<<10)
		case n == cuts+1:
			close(enough)
		}
		return 1 << 50
	}
	a := s.attach(budget, nil)

	// Both directions carry a pattern until there have been enough cuts.
	sent := [3]bytes.Buffer{}
	var wg sync.WaitGroup
	carry := func(i int, w io.Writer) {
		defer wg.Done()
		for n := uint64(0); ; n++ {
			b := pattern(n*3+uint64(i), 1+rand.IntN(5000))
			select {
			case <-enough:
				return
			default:
			}
			if _, err := w.Write(b); err != nil {
				t.Errorf("writing %d: %v", i, err)
				return
			}
			sent[i].Write(b)
		}
	}
	wg.Add(3)
	go func() {
		carry(0, a)
		if err := a.CloseStdin(); err != nil {
			t.Error(err)
		}
	}()
	go carry(1, p.out)
	go carry(2, p.err)
	go func() {
		wg.Wait()
		await(t, "the end of stdin", func() bool { p.in.mu.Lock(); defer p.in.mu.Unlock(); return p.in.closed > 0 })
		p.end(0)
	}()

	got := collect(a)
	if got.err != io.EOF || len(got.exit) != 1 || got.gaps != nil {
		t.Errorf("exits %v, gaps %v, %v", got.exit, got.gaps, got.err)
	}
	for _, x := range []struct {
		name      string
		got, want []byte
	}{
		{"stdin", p.in.got.Bytes(), sent[0].Bytes()},
		{"stdout", got.out[1].Bytes(), sent[1].Bytes()},
		{"stderr", got.out[2].Bytes(), sent[2].Bytes()},
	} {
		if !bytes.Equal(x.got, x.want) {
			t.Errorf("%s: got %d bytes, want %d, or they differ", x.name, len(x.got), len(x.want))
		}
	}
	t.Logf("%d connections; %d, %d and %d bytes", made.Load(), sent[0].Len(), sent[1].Len(), sent[2].Len())
}

// lines are connections that a test can cut.
type lines struct {
	mu    sync.Mutex
	conns []net.Conn
}

func (l *lines) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	var d net.Dialer
	c, err := d.DialContext(ctx, network, addr)
	if err == nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.conns = append(l.conns, c)
	}
	return c, err
}

func (l *lines) cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, c := range l.conns {
		c.Close()
	}
	l.conns = nil
}

func (s *server) awaitNobody() {
	s.t.Helper()
	await(s.t, "the relay to notice", func() bool { return s.hub.o.Counters.Connections.Load() == 0 })
}

// TestStdinAcrossConnections: the fate of unacknowledged stdin depends on what happens while
// there is no connection. The process has accepted "abc", which was acknowledged, and "12"
// of "123456", which was not.
func TestStdinAcrossConnections(t *testing.T) {
	for _, test := range []struct {
		name      string
		meanwhile func(t *testing.T, s *server)
		events    []Event // the first events after the cut
		err       error
		stdin     string
	}{
		{"nothing", nil, nil, nil, "abc123456"},
		{"another writer came and left", func(t *testing.T, s *server) {
			other := s.dial(asWriter)
			s.proc.in.change(func() { s.proc.in.allow = -1 })
			other.Write([]byte("xy"))
			await(t, "stdin", func() bool { return s.proc.in.Accepted() == 7 })
			other.Close()
			s.awaitNobody()
		}, []Event{StdinLost{6}}, nil, "abc12xy"},
		{"another writer came", func(t *testing.T, s *server) { s.dial(asWriter) },
			[]Event{WriterChanged{}, StdinLost{6}}, nil, "abc12"},
		{"the process has taken less", func(t *testing.T, s *server) { s.proc.in.change(func() { s.proc.in.n = 2 }) }, nil, ErrProtocol, ""},
		{"the process has taken more", func(t *testing.T, s *server) { s.proc.in.change(func() { s.proc.in.n = 10 }) }, nil, ErrProtocol, ""},
		{"the output went back", func(t *testing.T, s *server) { s.proc.out.end = 2 }, nil, &DialError{}, ""},
		{"removed", func(t *testing.T, s *server) { s.hub.Remove() }, nil, &DialError{}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, l := newProc(4<<10), &lines{}
			s := serve(t, p, Options{})
			lost := 0
			a, err := Attach(t.Context(), AttachOptions{
				DialOptions: DialOptions{URL: s.http.URL, Write: true, NetDial: l.dial},
				Lost: func(error) {
					if lost++; lost == 1 && test.meanwhile != nil {
						s.awaitNobody()
						test.meanwhile(t, s)
					}
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer a.Close()
			a.Write([]byte("abc"))
			if st, err := a.Recv(); err != nil || st.(StdinState).Accepted != 3 {
				t.Fatalf("got %v, %v", st, err)
			}
			p.out.Write([]byte("out"))
			next[Data](t, a)
			p.in.change(func() { p.in.allow = 5 })
			a.Write([]byte("123456"))
			await(t, "stdin", func() bool { return p.in.Accepted() == 5 })
			l.cut()

			got, err := a.Recv, error(nil)
			for _, want := range test.events {
				var ev Event
				if ev, err = got(); err != nil || ev != want {
					t.Fatalf("got %v, %v, want %v", ev, err, want)
				}
			}
			if test.err == nil {
				go collect(a)
				if test.meanwhile == nil {
					p.in.change(func() { p.in.allow = -1 })
				}
				await(t, "stdin", func() bool { return p.in.text() == test.stdin })
				return
			}
			_, err = a.Recv()
			var refused *DialError
			if _, ok := test.err.(*DialError); ok && !errors.As(err, &refused) || !ok && !errors.Is(err, test.err) {
				t.Errorf("got %v, want %T", err, test.err)
			}
			if _, err := a.Write([]byte("x")); !errors.Is(err, net.ErrClosed) {
				t.Errorf("writing after the end: %v", err)
			}
		})
	}
}

// TestSizeAcrossConnections: a new connection sets the latest size again.
func TestSizeAcrossConnections(t *testing.T) {
	p, l := newProc(4<<10), &lines{}
	s := serve(t, p, Options{})
	a, err := Attach(t.Context(), AttachOptions{DialOptions: DialOptions{URL: s.http.URL, Write: true, NetDial: l.dial}})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	a.Resize(1, 2)
	a.Resize(3, 4)
	sizes := func() int { p.mu.Lock(); defer p.mu.Unlock(); return len(p.sizes) }
	await(t, "two sizes", func() bool { return sizes() == 2 })
	l.cut()
	go collect(a)
	await(t, "the size again", func() bool { return sizes() == 3 })
	if p.sizes[2] != [2]uint16{3, 4} {
		t.Errorf("sizes %v", p.sizes)
	}
}

func TestAttachmentEnds(t *testing.T) {
	for _, how := range []string{"close", "close while it connects", "context", "give up"} {
		p, l := newProc(4<<10), &lines{}
		s := serve(t, p, Options{})
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		o := AttachOptions{DialOptions: DialOptions{URL: s.http.URL, Write: true, NetDial: l.dial}, GiveUp: time.Nanosecond}
		lost := make(chan struct{}, 1000)
		if how == "close while it connects" {
			o.GiveUp, o.Lost = 0, func(error) { lost <- struct{}{} }
		}
		a, err := Attach(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		result := make(chan error, 1)
		go func() { _, err := a.Recv(); result <- err }()
		switch how {
		case "close":
			a.Close()
		case "context":
			cancel()
		default:
			s.http.Listener.Close()
			l.cut()
			if how != "give up" {
				<-lost
				<-lost
				a.Close()
			}
		}
		err = <-result
		if gaveUp := err != nil && strings.Contains(err.Error(), "giving up"); gaveUp != (how == "give up") || !gaveUp && err != net.ErrClosed {
			t.Errorf("%s: got %v", how, err)
		}
	}
}

// TestAwait: a first connection is retried while no relay answers, and only then.
func TestAwait(t *testing.T) {
	p := newProc(4 << 10)
	s := serve(t, p, Options{})
	for _, c := range []struct {
		name    string
		refusal error // of the first two attempts
		final   bool
	}{
		{"refused", syscall.ECONNREFUSED, false},
		{"no socket", fs.ErrNotExist, false},
		{"reset", syscall.ECONNRESET, false},
		{"no right to connect", fs.ErrPermission, true},
		{"no such host", &net.DNSError{Err: "no such host", IsNotFound: true}, true},
	} {
		for _, await := range []bool{true, false} {
			tried, lost := 0, 0
			o := AttachOptions{Await: await, Lost: func(error) { lost++ }, DialOptions: DialOptions{URL: s.http.URL, TakeOver: true, Write: true,
				NetDial: func(ctx context.Context, network, addr string) (net.Conn, error) {
					if tried++; tried <= 2 {
						return nil, c.refusal
					}
					var d net.Dialer
					return d.DialContext(ctx, network, addr)
				}}}
			a, err := Attach(t.Context(), o)
			if await && !c.final {
				if err != nil || lost != 2 || !a.Hello().Writer {
					t.Fatalf("%s: %v, told of %d", c.name, err, lost)
				}
				a.Close()
			} else if !errors.Is(err, c.refusal) || lost != 0 || tried != 1 {
				t.Errorf("%s, await %v: %v after %d attempts, told of %d", c.name, await, err, tried, lost)
			}
		}
	}
	// A refusal of the daemon ends the retries, "try again" does not.
	for status, attempts := range map[int]int32{http.StatusNotFound: 1, http.StatusInternalServerError: 1, http.StatusServiceUnavailable: 3} {
		var asked atomic.Int32
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if asked.Add(1) < 3 {
				w.WriteHeader(status)
				return
			}
			w.WriteHeader(http.StatusGone)
		}))
		_, err := Attach(t.Context(), AttachOptions{Await: true, DialOptions: DialOptions{URL: server.URL}})
		server.Close()
		if got := asked.Load(); err == nil || got != attempts {
			t.Errorf("%d: %v after %d attempts, want %d", status, err, got, attempts)
		}
	}
}

// TestConflictOfSomebodyElse: only the relay's own 409 turns a writer into an observer.
func TestConflictOfSomebodyElse(t *testing.T) {
	p, l := newProc(4<<10), &lines{}
	s := serve(t, p, Options{})
	a, err := Attach(t.Context(), AttachOptions{DialOptions: DialOptions{URL: s.http.URL, Write: true, NetDial: l.dial}})
	if err != nil {
		t.Fatal(err)
	}
	s.http.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Error(w, "state", http.StatusConflict) })
	l.cut()
	var refused *DialError
	if ev, err := a.Recv(); !errors.As(err, &refused) || refused.Status != http.StatusConflict {
		t.Errorf("got %v, %v", ev, err)
	}
}

// TestRetryAfter: an attachment comes back when the server has said that it may, and not before.
func TestRetryAfter(t *testing.T) {
	p, l := newProc(4<<10), &lines{}
	s := serve(t, p, Options{})
	var waits []time.Duration
	a, err := Attach(t.Context(), AttachOptions{
		DialOptions: DialOptions{URL: s.http.URL, NetDial: l.dial},
		Lost: func(err error) {
			if refused, ok := errors.AsType[*DialError](err); ok {
				waits = append(waits, refused.RetryAfter)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	serves := s.http.Config.Handler
	var refusedAt atomic.Pointer[time.Time]
	s.http.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		now := time.Now()
		if refusedAt.CompareAndSwap(nil, &now) {
			w.Header().Set("Retry-After", "1")
			http.Error(w, "too many", http.StatusTooManyRequests)
			return
		}
		if early := time.Second - time.Since(*refusedAt.Load()); early > 0 {
			t.Errorf("it came back %v too early", early)
		}
		serves.ServeHTTP(w, r)
	})
	l.cut()
	p.out.write(nil, []byte("x"))
	if ev, err := a.Recv(); err != nil {
		t.Errorf("%v, %v", ev, err)
	}
	if len(waits) != 1 || waits[0] != time.Second {
		t.Errorf("%v", waits)
	}
}
