package relay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
)

// pattern returns n bytes of a pattern that does not repeat.
func pattern(seed uint64, n int) []byte {
	b := make([]byte, n)
	var key [32]byte
	key[0] = byte(seed)
	rand.NewChaCha8(key).Read(b)
	return b
}

func TestOutputAndExit(t *testing.T) {
	p := newProc(64 << 10)
	s := serve(t, p, Options{Window: 64 << 10})
	c := s.dial(asWriter)
	out, errs := pattern(1, 300<<10), pattern(2, 200<<10)
	go func() {
		p.out.Write(out)
		p.err.Write(errs)
		p.end(3)
	}()
	got := collect(c)
	if !bytes.Equal(got.out[Stdout].Bytes(), out) || !bytes.Equal(got.out[Stderr].Bytes(), errs) {
		t.Errorf("got %d and %d bytes, want %d and %d unchanged", got.out[Stdout].Len(), got.out[Stderr].Len(), len(out), len(errs))
	}
	if len(got.exit) != 1 || got.exit[0] != (Exit{Code: 3, Verdict: "exited"}) || got.err != io.EOF || got.gaps != nil {
		t.Errorf("got exits %v, gaps %v, error %v", got.exit, got.gaps, got.err)
	}
	if p.touched == 0 {
		t.Error("traffic did not count as use")
	}
}

func TestStdinResizeSignal(t *testing.T) {
	p := newProc(4 << 10)
	c := serve(t, p, Options{}).dial(asWriter)
	in := pattern(1, 1<<20)
	go func() {
		c.Resize(24, 80)
		c.Write(in)
		c.Signal(15)
		c.Signal(64)
		c.CloseStdin()
	}()
	refused, closed := 0, false
	for refused == 0 || !closed { // in no order
		ev, err := c.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := ev.(Refused); ok {
			refused++
		}
		if st, ok := ev.(StdinState); ok && st.Closed {
			closed = true
		}
	}
	if p.in.text() != string(in) || p.in.closed != 1 {
		t.Errorf("stdin differs, or was closed %d times", p.in.closed)
	}
	if len(p.signals) != 1 || p.signals[0] != 15 || len(p.sizes) != 1 || p.sizes[0] != [2]uint16{24, 80} || refused != 1 {
		t.Errorf("signals %v, sizes %v, %d refused", p.signals, p.sizes, refused)
	}
	if _, err := c.Write([]byte("x")); err == nil {
		t.Error("wrote behind the end of stdin")
	}
}

// TestStdinThatIsNotRead: signals, sizes and acks still work, and the window bounds stdin.
func TestStdinThatIsNotRead(t *testing.T) {
	p := newProc(4 << 10)
	p.in.allow = 10
	c := serve(t, p, Options{StdinWindow: 1000, Window: 4 << 10}).dial(asWriter)
	wrote := make(chan error, 1)
	go func() { _, err := c.Write(make([]byte, 5000)); wrote <- err }()
	go p.out.Write(make([]byte, 1<<20))
	for n := 0; n < 1<<20; {
		n += len(next[Data](t, c).Bytes)
	}
	if err := c.Signal(2); err != nil {
		t.Fatal(err)
	}
	await(t, "the signal", func() bool { p.mu.Lock(); defer p.mu.Unlock(); return len(p.signals) == 1 })
	select {
	case err := <-wrote:
		t.Fatalf("write of more than the window ended: %v", err)
	default:
	}
	go collect(c)
	p.in.change(func() { p.in.allow = -1 })
	if err := <-wrote; err != nil {
		t.Fatal(err)
	}
	await(t, "stdin", func() bool { return p.in.Accepted() == 5000 })
}

// TestStdinNobodyReads: the process has closed its end, or stdin was closed before.
func TestStdinNobodyReads(t *testing.T) {
	for _, broken := range []bool{true, false} {
		p := newProc(4 << 10)
		p.in.broken, p.in.closed = broken, 1
		c := serve(t, p, Options{}).dial(asWriter)
		c.Write([]byte("x"))
		ev, err := c.Recv()
		if st, ok := ev.(StdinState); !ok || !st.Closed || st.Accepted != 0 {
			t.Errorf("broken %v: got %v, %v", broken, ev, err)
		}
	}
}

func TestSince(t *testing.T) {
	p := newProc(4 << 10)
	p.out.drop = true
	p.out.Write(pattern(1, 10000))
	p.err.Write([]byte("errors"))
	p.end(0)
	s := serve(t, p, Options{})
	oldest := int64(10000 - 4<<10)
	at := func(off int64) Position { return Position{At, off} }
	for _, test := range []struct {
		name   string
		since  Since
		gap    []Gap
		n, err int
	}{
		{"oldest", Since{}, nil, 4 << 10, 6},
		{"end", Since{Position{Kind: End}, Position{Kind: End}}, nil, 0, 0},
		{"offset", Since{at(9000), at(2)}, nil, 1000, 4},
		{"at the end", Since{at(10000), at(6)}, nil, 0, 0},
		{"at the oldest", Since{at(oldest), at(0)}, nil, 4 << 10, 6},
		{"too old by one", Since{at(oldest - 1), at(0)}, []Gap{{Stdout, oldest - 1, oldest}}, 4 << 10, 6},
		{"too old", Since{at(0), at(6)}, []Gap{{Stdout, 0, oldest}}, 4 << 10, 0},
	} {
		got := collect(s.dial(func(o *DialOptions) { o.Since = test.since }))
		if len(got.gaps) != len(test.gap) || len(test.gap) == 1 && got.gaps[0] != test.gap[0] {
			t.Errorf("%s: gaps %v, want %v", test.name, got.gaps, test.gap)
		}
		want := pattern(1, 10000)[10000-test.n:]
		if !bytes.Equal(got.out[Stdout].Bytes(), want) || got.out[Stderr].Len() != test.err {
			t.Errorf("%s: got %d and %d bytes, want %d and %d", test.name, got.out[Stdout].Len(), got.out[Stderr].Len(), test.n, test.err)
		}
		if got.err != io.EOF || len(got.exit) != 1 {
			t.Errorf("%s: %d exits, then %v", test.name, len(got.exit), got.err)
		}
	}
	_, err := s.tryDial(func(o *DialOptions) { o.Since.Stdout = at(10001) })
	wantRefusal(t, err, 416)
}

func wantRefusal(t *testing.T, err error, status int) {
	t.Helper()
	var refused *DialError
	if !errors.As(err, &refused) || refused.Status != status {
		t.Errorf("got %v, want status %d", err, status)
	}
}

func TestWriters(t *testing.T) {
	p := newProc(4 << 10)
	s := serve(t, p, Options{})
	first := s.dial(asWriter)
	_, err := s.tryDial(asWriter)
	wantRefusal(t, err, 409)
	_, err = s.tryDial(func(o *DialOptions) { asTakeOver(o); o.Header = map[string][]string{"Grant": {"write"}} })
	wantRefusal(t, err, 403)
	_, err = s.tryDial(func(o *DialOptions) { asWriter(o); o.Header = map[string][]string{"Grant": {"none"}} })
	wantRefusal(t, err, 403)
	// A browser hides the status from its page.
	page, err := s.tryDial(func(o *DialOptions) {
		asWriter(o)
		o.Header = map[string][]string{"Sec-Websocket-Protocol": {"boxd.page.x, " + Subprotocol}}
	})
	if closed := new(CloseError); err == nil || !errors.As(err, &closed) || closed.Code != codeConflict {
		t.Errorf("a page that is not the first writer: %v, %v", page, err)
	}
	if observer := s.dial(nil); observer.Hello().Writer || observer.Signal(1) != ErrNotWriter {
		t.Error("an observer may write")
	}

	p.in.change(func() { p.in.allow = 3 })
	first.Write([]byte("one, and what the process does not read"))
	await(t, "stdin", func() bool { return p.in.Accepted() == 3 })
	second := s.dial(asTakeOver)
	if h := second.Hello(); !h.Writer || h.StdinAccepted != 3 || !h.Interrupted {
		t.Errorf("taking over: %+v", h)
	}
	if next[WriterChanged](t, first).Writer {
		t.Error("still the writer")
	}
	if _, err := first.Write([]byte("x")); err != ErrNotWriter {
		t.Errorf("writing after a take-over: %v", err)
	}
	p.in.change(func() { p.in.allow = -1 })
	second.Write([]byte(" two"))
	await(t, "stdin", func() bool { return p.in.Accepted() == 7 })
	if p.in.text() != "one two" {
		t.Errorf("stdin: %q", p.in.text())
	}
	// The displaced writer continues as an observer.
	p.out.Write([]byte("hello"))
	if d := next[Data](t, first); string(d.Bytes) != "hello" {
		t.Errorf("got %q", d.Bytes)
	}
	if got := s.hub.o.Counters.Takeovers.Load(); got != 1 {
		t.Errorf("%d takeovers", got)
	}
	second.Close()
	await(t, "the writer to be gone", func() bool { s.hub.mu.Lock(); defer s.hub.mu.Unlock(); return s.hub.writer == nil })
	s.dial(asWriter)
}

// TestSameClientReplacesItself: otherwise a client that has lost its connection would be
// locked out until the relay notices.
func TestSameClientReplacesItself(t *testing.T) {
	s := serve(t, newProc(4<<10), Options{})
	me := func(o *DialOptions) { asWriter(o); o.ClientID = strings.Repeat("me", 10) }
	first := s.dial(me)
	second := s.dial(me)
	if h := second.Hello(); !h.Writer || h.Interrupted {
		t.Errorf("replacing: %+v", h)
	}
	got := collect(first)
	var closed *CloseError
	if !errors.As(got.err, &closed) || closed.Code != codeReplaced {
		t.Errorf("the first one got %v", got.err)
	}
	if s.hub.o.Counters.Takeovers.Load() != 0 {
		t.Error("counted as a take-over")
	}
}

// TestBackPressure: only the writer's acknowledgements let the process continue.
func TestBackPressure(t *testing.T) {
	const size = 8 << 10
	p := newProc(size)
	s := serve(t, p, Options{Window: size})
	wrote := make(chan struct{})
	go func() { p.out.Write(make([]byte, 4*size)); close(wrote) }()
	observer := s.dial(nil)
	for n := 0; n < size; {
		n += len(next[Data](t, observer).Bytes)
	}
	full := func() bool { _, end := p.out.Bounds(); return end == size }
	if await(t, "a full ring", full); !full() {
		t.Fatal("an observer released")
	}
	writer := s.dial(asWriter)
	n := 0
	for n < size {
		n += len(next[Data](t, writer).Bytes)
	}
	// The last event was not consumed yet, so at most the others were released.
	select {
	case <-wrote:
		t.Fatal("more was released than was consumed")
	default:
	}
	for n < 4*size {
		n += len(next[Data](t, writer).Bytes)
	}
	<-wrote
	writer.Close()
	// A writer that starts at the end does not keep the bytes before.
	p.out.Release(3 * size)
	await(t, "the end of the writer", func() bool { s.hub.mu.Lock(); defer s.hub.mu.Unlock(); return s.hub.writer == nil })
	s.dial(func(o *DialOptions) { asWriter(o); o.Since.Stdout.Kind = End })
	await(t, "the release", func() bool { p.out.mu.Lock(); defer p.out.mu.Unlock(); return p.out.released == 4*size })
}

// TestSlowObserver: it is cut off or gets gaps, and does not delay anyone.
func TestSlowObserver(t *testing.T) {
	p := newProc(64 << 10)
	s := serve(t, p, Options{Window: 64 << 10})
	slow := s.dial(nil)
	writer := s.dial(asWriter)
	const total = 32 << 20
	go func() {
		p.out.Write(make([]byte, total))
		p.end(0)
	}()
	got := collect(writer)
	if got.out[Stdout].Len() != total || got.gaps != nil {
		t.Fatalf("the writer got %d bytes, gaps %v", got.out[Stdout].Len(), got.gaps)
	}
	late := collect(slow)
	lost := int64(0)
	for _, g := range late.gaps {
		lost += g.To - g.From
	}
	if lost == 0 || int64(late.out[Stdout].Len())+lost != total || len(late.exit) != 1 {
		t.Errorf("the observer got %d bytes, lost %d, %d exits, %v", late.out[Stdout].Len(), lost, len(late.exit), late.err)
	}
}

func TestExitComesLast(t *testing.T) {
	for _, order := range []string{"streams first", "process first", "output after the last reader waits"} {
		p := newProc(64 << 10)
		s := serve(t, p, Options{})
		c := s.dial(asWriter)
		p.exit = Exit{Code: 7, Verdict: "exited"}
		switch order {
		case "streams first":
			p.out.Write([]byte("last"))
			p.out.close()
			p.err.close()
			next[Data](t, c)
			close(p.done)
		case "process first":
			p.out.Write([]byte("last"))
			close(p.done) // the streams never report their end
		default:
			p.out.Write([]byte("la"))
			next[Data](t, c)
			p.out.Write([]byte("st"))
			close(p.done)
		}
		got := collect(c)
		if len(got.exit) != 1 || got.exit[0].Code != 7 || got.err != io.EOF || len(got.gaps) != 0 {
			t.Errorf("%s: exits %v, gaps %v, %v", order, got.exit, got.gaps, got.err)
		}
	}
}

func TestLostProcess(t *testing.T) {
	p := newProc(4 << 10)
	s := serve(t, p, Options{})
	c := s.dial(asWriter)
	p.out.Write([]byte("some"))
	next[Data](t, c)
	p.exit = Exit{Code: -1, Verdict: VerdictLost}
	p.out.fail(errors.New("the box is gone"))
	p.err.fail(errors.New("the box is gone"))
	close(p.done)
	got := collect(c)
	if len(got.exit) != 1 || got.exit[0] != p.exit || got.err != io.EOF {
		t.Errorf("exits %v, %v", got.exit, got.err)
	}
	// A late client is told that the output is gone.
	got = collect(s.dial(nil))
	if len(got.gaps) != 1 || got.gaps[0] != (Gap{Stdout, 0, 4}) || len(got.exit) != 1 {
		t.Errorf("late: gaps %v, exits %v, %v", got.gaps, got.exit, got.err)
	}
}

func TestRemove(t *testing.T) {
	p := newProc(4 << 10)
	s := serve(t, p, Options{})
	c := s.dial(asWriter)
	p.out.Write([]byte("some"))
	next[Data](t, c)
	go s.hub.Remove()
	got := collect(c)
	if len(got.exit) != 1 || got.exit[0] != (Exit{Code: -1, Verdict: VerdictLost}) || got.err != io.EOF {
		t.Errorf("exits %v, %v", got.exit, got.err)
	}
	_, err := s.tryDial(nil)
	wantRefusal(t, err, 410)
}

func TestClose(t *testing.T) {
	s := serve(t, newProc(4<<10), Options{})
	clients := []*Client{s.dial(asWriter), s.dial(nil), s.dial(nil)}
	closed := make(chan struct{})
	go func() { s.hub.Close(); close(closed) }()
	for _, c := range clients {
		var e *CloseError
		if _, err := c.Recv(); !errors.As(err, &e) || e.Code != 1012 {
			t.Errorf("got %v, want close code 1012", err)
		}
	}
	<-closed
	_, err := s.tryDial(nil)
	wantRefusal(t, err, 503)
}

func TestTooManyConnections(t *testing.T) {
	s := serve(t, newProc(4<<10), Options{MaxConns: 2})
	s.dial(nil)
	s.dial(nil)
	_, err := s.tryDial(nil)
	wantRefusal(t, err, 429)
}

// TestTerminal: a terminal has one output.
func TestTerminal(t *testing.T) {
	p := newProc(4 << 10)
	src := p.source()
	src.Stderr, src.TTY = nil, true
	s := serveSource(t, p, src, Options{})
	c := s.dial(asWriter)
	if h := c.Hello(); !h.TTY || h.HasStderr {
		t.Errorf("hello: %+v", h)
	}
	p.in.onData = func(b []byte) { p.out.Write(b) }
	c.Write([]byte("echo"))
	if d := next[Data](t, c); string(d.Bytes) != "echo" {
		t.Errorf("got %q", d.Bytes)
	}
	p.end(0)
	if got := collect(c); len(got.exit) != 1 {
		t.Errorf("%v", got.err)
	}
}

func TestLongLines(t *testing.T) {
	p := newProc(1 << 20)
	c := serve(t, p, Options{}).dial(asWriter)
	line := append(bytes.Repeat([]byte("x"), 10<<20), '\n')
	go func() { p.out.Write(line); p.end(0) }()
	if got := collect(c); !bytes.Equal(got.out[Stdout].Bytes(), line) {
		t.Errorf("got %d bytes, want %d: %v", got.out[Stdout].Len(), len(line), got.err)
	}
}

// TestTinyWrites: a flood of tiny writes in both directions.
func TestTinyWrites(t *testing.T) {
	p := newProc(64 << 10)
	c := serve(t, p, Options{Window: 64 << 10}).dial(asWriter)
	const n = 20000
	p.in.onData = func(b []byte) { p.out.Write(b) }
	go func() {
		for i := range n {
			c.Write([]byte{byte(i)})
		}
		c.CloseStdin()
	}()
	go func() {
		await(t, "stdin", func() bool { p.in.mu.Lock(); defer p.in.mu.Unlock(); return p.in.closed > 0 })
		p.end(0)
	}()
	got := collect(c)
	for i, b := range got.out[Stdout].Bytes() {
		if b != byte(i) {
			t.Fatalf("byte %d is %d", i, b)
		}
	}
	if got.out[Stdout].Len() != n || len(got.exit) != 1 {
		t.Errorf("got %d bytes, want %d: %v", got.out[Stdout].Len(), n, got.err)
	}
}

func TestLogs(t *testing.T) {
	p := newProc(4 << 10)
	p.out.drop = true
	all := pattern(1, 10000)
	p.out.Write(all)
	s := serve(t, p, Options{})
	oldest := 10000 - 4<<10
	for _, test := range []struct {
		name        string
		o           LogOptions
		first, gone int64
		n           int
		err         error
	}{
		{"all", LogOptions{}, int64(oldest), int64(oldest), 4 << 10, nil},
		{"from an offset", LogOptions{Offset: 9000}, 9000, 0, 1000, nil},
		{"limited", LogOptions{Offset: 9000, Limit: 10}, 9000, 0, 10, nil},
		{"the last ten", LogOptions{Offset: -10}, 9990, 0, 10, nil},
		{"the last million", LogOptions{Offset: -1000000}, int64(oldest), int64(oldest), 4 << 10, nil},
		{"at the end", LogOptions{Offset: 10000}, 10000, 0, 0, nil},
		{"followed up to a limit", LogOptions{Offset: 9000, Limit: 1000, Follow: true}, 9000, 0, 1000, nil},
		{"above the end", LogOptions{Offset: 10001}, 0, 0, 0, ErrRange},
		{"nothing in stderr", LogOptions{Stream: Stderr}, 0, 0, 0, nil},
		{"no such stream", LogOptions{Stream: 3}, 0, 0, 0, ErrNoStream},
	} {
		var b bytes.Buffer
		var first, gone int64
		test.o.Start = func(f, g int64) { first, gone = f, g }
		err := s.hub.Logs(t.Context(), &b, test.o)
		if !errors.Is(err, test.err) || first != test.first || gone != test.gone {
			t.Errorf("%s: from %d, %d gone, %v; want %d, %d, %v", test.name, first, gone, err, test.first, test.gone, test.err)
		}
		if first+int64(test.n) <= 10000 && test.o.Stream == 0 && !bytes.Equal(b.Bytes(), all[first:first+int64(test.n)]) || b.Len() != test.n {
			t.Errorf("%s: got %d bytes, want %d", test.name, b.Len(), test.n)
		}
	}
}

func TestLogsFollow(t *testing.T) {
	for _, how := range []string{"eof", "done only", "closed"} {
		p := newProc(4 << 10)
		s := serve(t, p, Options{})
		r, w := io.Pipe()
		result := make(chan error, 1)
		go func() { result <- s.hub.Logs(t.Context(), w, LogOptions{Follow: true}); w.Close() }()
		buf := make([]byte, 10)
		for _, text := range []string{"one", "two"} {
			p.out.Write([]byte(text))
			if _, err := io.ReadFull(r, buf[:3]); err != nil || string(buf[:3]) != text {
				t.Fatalf("%s: got %q, %v", how, buf[:3], err)
			}
		}
		var want error
		switch how {
		case "eof":
			p.end(0)
		case "done only":
			close(p.done)
		case "closed":
			go s.hub.Close()
			want = ErrClosed
		}
		if err := <-result; !errors.Is(err, want) {
			t.Errorf("%s: got %v, want %v", how, err, want)
		}
	}
}

// TestLogsTooSlow: lost bytes end the log.
func TestLogsTooSlow(t *testing.T) {
	p := newProc(4 << 10)
	p.out.drop = true
	s := serve(t, p, Options{})
	r, w := io.Pipe()
	result := make(chan error, 1)
	go func() { result <- s.hub.Logs(t.Context(), w, LogOptions{Follow: true}); w.Close() }()
	p.out.Write([]byte("x"))
	buf := make([]byte, 1)
	io.ReadFull(r, buf)
	p.out.Write([]byte("y"))
	p.out.Write(make([]byte, 10000))
	go io.Copy(io.Discard, r)
	var gap *GapError
	if err := <-result; !errors.As(err, &gap) || gap.From < 1 {
		t.Errorf("got %v", err)
	}
}

// TestNote: an action that cannot be recorded is refused.
func TestNote(t *testing.T) {
	p := newProc(4 << 10)
	s := serve(t, p, Options{})
	var noted []string
	fail := error(nil)
	g := Grant{Write: true, TakeOver: true, Note: func(act Act, sig int) error {
		noted = append(noted, fmt.Sprint(act, sig))
		return fail
	}}
	s.http.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.hub.Serve(w, r, g) })
	c := s.dial(asWriter)
	c.Signal(2)
	c.Signal(64)
	next[Refused](t, c)
	if len(p.signals) != 1 || fmt.Sprint(noted) != "[signal2 signal64]" {
		t.Errorf("signals %v, noted %v", p.signals, noted)
	}
	fail = errors.New("disk full")
	c.Signal(3)
	next[Refused](t, c)
	_, err := s.tryDial(asTakeOver)
	wantRefusal(t, err, 507)
	if len(p.signals) != 1 || noted[len(noted)-1] != "takeover0" {
		t.Errorf("signals %v, noted %v", p.signals, noted)
	}
}
