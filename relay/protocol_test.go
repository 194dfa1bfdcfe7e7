package relay

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/testutil"
)

// raw is a connection that sends whatever a test wants.
func (s *server) raw(query string) *websocket.Conn {
	s.t.Helper()
	ws, resp, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(s.http.URL, "http")+"?"+query, nil)
	if err != nil {
		s.t.Fatal(err, resp)
	}
	s.t.Cleanup(func() { ws.Close() })
	return ws
}

func be64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }

func frame(typ byte, parts ...[]byte) []byte {
	b := []byte{typ}
	for _, p := range parts {
		b = append(b, p...)
	}
	return b
}

func TestViolations(t *testing.T) {
	const W, O = "mode=write", "mode=observe"
	big := make([]byte, MaxStdin+1)
	for _, test := range []struct {
		name, query string
		msg         []byte
		code        int
	}{
		{"empty", W, nil, 1002},
		{"unknown type", W, frame(0x7f), 1002},
		{"type of the server", W, frame(typeExit, be64(0)), 1002},
		{"Stdin without data", W, frame(typeStdin, be64(0)), 1002},
		{"Stdin cut", W, frame(typeStdin, []byte{0, 0}), 1002},
		{"Stdin with a hole", W, frame(typeStdin, be64(1), []byte("x")), 1002},
		{"Stdin at a negative offset", W, frame(typeStdin, be64(1<<63), []byte("x")), 1002},
		{"Stdin at the last offset", W, frame(typeStdin, be64(1<<63-1), []byte("x")), 1002},
		{"Stdin above the maximum", W, frame(typeStdin, be64(0), big), 1009},
		{"Stdin above the window", W, frame(typeStdin, be64(0), big[:3000]), 1002},
		{"Stdin of an observer", O, frame(typeStdin, be64(0), []byte("x")), 1008},
		{"CloseStdin elsewhere", W, frame(typeCloseStdin, be64(1)), 1002},
		{"CloseStdin too long", W, frame(typeCloseStdin, be64(0), []byte{0}), 1002},
		{"CloseStdin of an observer", O, frame(typeCloseStdin, be64(0)), 1008},
		{"Ack of what was not sent", W, frame(typeAck, []byte{1}, be64(6)), 1002},
		{"Ack of what an observer was not sent", O, frame(typeAck, []byte{1}, be64(6)), 1002},
		{"Ack of stream 0", W, frame(typeAck, []byte{0}, be64(0)), 1002},
		{"Ack of stream 3", W, frame(typeAck, []byte{3}, be64(0)), 1002},
		{"Ack cut", W, frame(typeAck, []byte{1}), 1002},
		{"Resize cut", W, frame(typeResize, []byte{0, 1, 0}), 1002},
		{"Resize of an observer", O, frame(typeResize, []byte{0, 1, 0, 1}), 1008},
		{"Signal 0", W, frame(typeSignal, []byte{0}), 1002},
		{"Signal 65", W, frame(typeSignal, []byte{65}), 1002},
		{"Signal too long", W, frame(typeSignal, []byte{1, 1}), 1002},
		{"Signal of an observer", O, frame(typeSignal, []byte{1}), 1008},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := newProc(4 << 10)
			p.out.Write([]byte("hello"))
			ws := serve(t, p, Options{StdinWindow: 2000}).raw(test.query)
			if err := ws.WriteMessage(websocket.BinaryMessage, test.msg); err != nil {
				t.Fatal(err)
			}
			wantClose(t, ws, test.code)
		})
	}
	t.Run("text", func(t *testing.T) {
		ws := serve(t, newProc(4<<10), Options{}).raw(W)
		ws.WriteMessage(websocket.TextMessage, []byte("hi"))
		wantClose(t, ws, 1003)
	})
	t.Run("Ack going back", func(t *testing.T) {
		p := newProc(4 << 10)
		p.out.Write([]byte("hello"))
		ws := serve(t, p, Options{}).raw(W)
		for range 2 {
			ws.ReadMessage()
		}
		for _, off := range []uint64{5, 4} {
			ws.WriteMessage(websocket.BinaryMessage, frame(typeAck, []byte{1}, be64(off)))
		}
		wantClose(t, ws, 1002)
	})
	t.Run("frame that is no WebSocket", func(t *testing.T) {
		ws := serve(t, newProc(4<<10), Options{}).raw(W)
		ws.UnderlyingConn().Write([]byte("\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff"))
		wantClose(t, ws, 1002)
	})
	t.Run("half a frame", func(t *testing.T) {
		s := serve(t, newProc(4<<10), Options{Dead: 200 * time.Millisecond, Linger: time.Millisecond})
		ws := s.raw(W)
		ws.UnderlyingConn().Write([]byte{0x82, 0xff})
		wantClose(t, ws, websocket.CloseAbnormalClosure)
	})
}

// wantClose reads until the connection is closed.
func wantClose(t *testing.T, ws *websocket.Conn, code int) {
	t.Helper()
	ws.SetReadDeadline(time.Now().Add(testutil.Patience()))
	for {
		if _, _, err := ws.ReadMessage(); err != nil {
			if !websocket.IsCloseError(err, code) {
				t.Errorf("got %v, want close code %d", err, code)
			}
			return
		}
	}
}

func TestRequests(t *testing.T) {
	s := serve(t, newProc(4<<10), Options{})
	for _, test := range []struct {
		query  string
		status int
	}{
		{"mode=read", 400}, {"mode=", 400}, {"mode=write&mode=write", 400}, {"takeover=1", 400},
		{"mode=write&takeover=yes", 400}, {"since=-1", 400}, {"since=%2b1", 400}, {"since=1,", 400}, {"since=,", 400},
		{"since=9223372036854775808", 400}, {"since=1,2,3", 400}, {"since=1,2&since_stderr=3", 400}, {"since_stderr=x", 400},
		{"client=short", 400}, {"client=" + strings.Repeat("x", 65), 400}, {"client=0123456789abcde%00", 400},
		{"unknown=1", 400}, {"a;b", 400}, {"%zz", 400}, {"since=1", 416}, {"since=0,1", 416}, {"since=end", 101}, {"since_stderr=0", 101}, {"", 101},
	} {
		ws, resp, err := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(s.http.URL, "http")+"?"+test.query, nil)
		if err == nil {
			ws.Close()
		}
		if resp == nil || resp.StatusCode != test.status {
			t.Errorf("%q: got %v, %v, want %d", test.query, resp, err, test.status)
		}
	}
	resp, err := http.Get(s.http.URL)
	if err != nil || resp.StatusCode != 400 {
		t.Errorf("plain GET: %v, %v", resp, err)
	}
	resp.Body.Close()
	for origin, status := range map[string]int{"http://evil.example": 403, s.http.URL: 101, "null": 403} {
		ws, resp, _ := websocket.DefaultDialer.Dial("ws"+strings.TrimPrefix(s.http.URL, "http"), http.Header{"Origin": {origin}})
		if ws != nil {
			ws.Close()
		}
		if resp == nil || resp.StatusCode != status {
			t.Errorf("origin %q: got %v, want %d", origin, resp, status)
		}
	}
}

func TestParseSince(t *testing.T) {
	at := func(off int64) Position { return Position{At, off} }
	end := Position{Kind: End}
	for _, test := range []struct {
		since, stderr string
		want          Since
	}{
		{"", "", Since{}}, {"5", "", Since{Stdout: at(5)}}, {"5,6", "", Since{at(5), at(6)}}, {"5", "6", Since{at(5), at(6)}},
		{"end", "", Since{end, end}}, {"end", "oldest", Since{Stdout: end}}, {"oldest,end", "", Since{Stderr: end}}, {"", "7", Since{Stderr: at(7)}},
	} {
		if got, err := ParseSince(test.since, test.stderr); err != nil || got != test.want {
			t.Errorf("%q, %q: got %v, %v, want %v", test.since, test.stderr, got, err, test.want)
		}
	}
}

// TestPeerThatNeverReads: such a client is cut and occupies little memory, and another is
// served meanwhile.
func TestPeerThatNeverReads(t *testing.T) {
	p := newProc(64 << 10)
	s := serve(t, p, Options{Stall: 300 * time.Millisecond, Window: 64 << 10})
	ws := s.raw("mode=observe")
	writer := s.dial(asWriter)
	stop := make(chan struct{})
	go func() {
		for p.out.write(stop, make([]byte, 1<<20)) == nil {
		}
		p.end(0)
	}()
	done := make(chan *collected, 1)
	go func() { done <- collect(&limited{r: writer}) }()
	await(t, "the cut", func() bool { return s.hub.o.Counters.Connections.Load() == 1 })
	close(stop)
	if got := <-done; len(got.exit) != 1 || got.gaps != nil {
		t.Errorf("the writer: gaps %v, %v", got.gaps, got.err)
	}
	ws.Close()
}

// limited discards data.
type limited struct{ r receiver }

func (l *limited) Recv() (Event, error) {
	for {
		ev, err := l.r.Recv()
		if _, ok := ev.(Data); !ok {
			return ev, err
		}
	}
}

// TestWriterThatNeverReads: the window bounds the bytes on their way to it.
func TestWriterThatNeverAcks(t *testing.T) {
	p := newProc(64 << 10)
	s := serve(t, p, Options{Window: 10000})
	ws := s.raw("mode=write")
	go p.out.Write(make([]byte, 64<<10))
	got := 0
	for got < 10000 {
		_, msg, err := ws.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		if msg[0] == typeData {
			got += len(msg) - dataHeader
		}
	}
	ws.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
	if _, msg, err := ws.ReadMessage(); err == nil || got != 10000 {
		t.Errorf("got %d bytes, and then %v of %d", got, err, len(msg))
	}
}

// pipeListener makes connections without the kernel, for tests that control time.
type pipeListener struct {
	conns chan net.Conn
	done  chan struct{}
}

func newPipeListener() *pipeListener {
	return &pipeListener{conns: make(chan net.Conn), done: make(chan struct{})}
}

func (l *pipeListener) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

func (l *pipeListener) Close() error {
	close(l.done)
	return nil
}

func (l *pipeListener) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }

func (l *pipeListener) dial(context.Context, string, string) (net.Conn, error) {
	mine, theirs := net.Pipe()
	select {
	case l.conns <- theirs:
		return mine, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// servePipe is serve over net.Pipe.
func servePipe(p *proc, o Options) (*Hub, *pipeListener, func()) {
	h, l := NewHub(p.source(), o), newPipeListener()
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.Serve(w, r, all) })}
	done := make(chan struct{})
	go func() { srv.Serve(l); close(done) }()
	return h, l, func() { h.Close(); srv.Close(); <-done }
}

func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, l, stop := servePipe(newProc(4<<10), Options{})
		defer stop()
		o := DialOptions{URL: "ws://pipe/", NetDial: l.dial}
		alive, err := Dial(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		result := make(chan error, 1)
		go func() { _, err := alive.Recv(); result <- err }()
		silent, err := Dial(t.Context(), o) // it never reads, so it sends no pong
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(59 * time.Second)
		synctest.Wait()
		if n := h.o.Counters.Connections.Load(); n != 2 {
			t.Errorf("%d connections before a minute has passed", n)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := h.o.Counters.Connections.Load(); n != 1 {
			t.Errorf("%d connections after a minute", n)
		}
		time.Sleep(time.Hour) // pings keep the other one alive
		synctest.Wait()
		select {
		case err := <-result:
			t.Errorf("the one that answers pings was cut: %v", err)
		default:
		}
		silent.Close()
		alive.Close()
		<-result
	})
}

// TestSilentServer: a client notices a relay that is silent.
func TestSilentServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, l, stop := servePipe(newProc(4<<10), Options{Ping: time.Hour, Dead: time.Hour})
		defer stop()
		c, err := Dial(t.Context(), DialOptions{URL: "ws://pipe/", NetDial: l.dial})
		if err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		_, err = c.Recv()
		var timeout net.Error
		if !errors.As(err, &timeout) || !timeout.Timeout() || time.Since(start) != time.Minute {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
	})
}

// liar is a server that sends what a test wants.
func liar(t *testing.T, messages ...[]byte) *Client {
	t.Helper()
	c, err := tryLiar(t, Since{}, messages...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func tryLiar(t *testing.T, since Since, messages ...[]byte) (*Client, error) {
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u := websocket.Upgrader{}
		ws, err := u.Upgrade(w, r, nil)
		if err != nil {
			return
		}
		defer ws.Close()
		for _, m := range messages {
			ws.WriteMessage(websocket.BinaryMessage, m)
		}
		io.Copy(io.Discard, ws.UnderlyingConn())
	}))
	t.Cleanup(srv.Close)
	c, err := Dial(t.Context(), DialOptions{URL: srv.URL, Since: since})
	if err == nil {
		t.Cleanup(func() { c.Close() })
	}
	return c, err
}

func data(s Stream, off uint64, p []byte) []byte {
	return frame(typeData, []byte{byte(s)}, be64(off), p)
}

func TestLyingServer(t *testing.T) {
	hello := appendHello(nil, Hello{Writer: true, HasStdin: true, StdinWindow: 10, Window: 10, StdinAccepted: 5,
		Stdout: Bounds{0, 100, 10}})
	for name, messages := range map[string][][]byte{
		"data at the wrong offset":   {data(Stdout, 11, []byte("x"))},
		"data again":                 {data(Stdout, 10, []byte("x")), data(Stdout, 10, []byte("x"))},
		"data of an absent stream":   {data(Stderr, 0, []byte("x"))},
		"data of stream 0":           {data(0, 10, []byte("x"))},
		"empty data":                 {data(Stdout, 10, nil)},
		"too much data":              {data(Stdout, 10, make([]byte, MaxData+1))},
		"gap at the wrong offset":    {appendGap(nil, Gap{Stdout, 11, 12})},
		"gap going back":             {appendGap(nil, Gap{Stdout, 10, 9})},
		"gap of nothing":             {appendGap(nil, Gap{Stdout, 10, 10})},
		"stdin taken back":           {appendStdinState(nil, StdinState{Accepted: 4})},
		"stdin taken ahead":          {appendStdinState(nil, StdinState{Accepted: 6})},
		"exit before the last byte":  {appendExit(nil, exitFrame{stdout: 11})},
		"exit with an absent stream": {appendExit(nil, exitFrame{stdout: 10, stderr: 1})},
		"exit with a code of 256":    {appendExit(nil, exitFrame{Exit: Exit{Code: 256}, stdout: 10})},
		"second hello":               {hello},
		"frame of a client":          {frame(typeAck, []byte{1}, be64(0))},
		"nothing":                    {{}},
	} {
		c := liar(t, append([][]byte{hello}, messages...)...)
		if got := collect(c); !errors.Is(got.err, ErrProtocol) || got.exit != nil {
			t.Errorf("%s: got exits %v, %v", name, got.exit, got.err)
		}
	}
	for name, first := range map[string][]byte{
		"no hello":                data(Stdout, 0, []byte("x")),
		"another version":         append([]byte{typeHello, 2}, hello[2:]...),
		"hello cut":               hello[:len(hello)-1],
		"unknown flag":            append([]byte{typeHello, 1, 0x20}, hello[3:]...),
		"a start above the end":   appendHello(nil, Hello{Stdout: Bounds{0, 1, 2}}),
		"an oldest above the end": appendHello(nil, Hello{Stdout: Bounds{2, 1, 1}}),
		"no window":               appendHello(nil, Hello{Writer: true, HasStdin: true}),
	} {
		if _, err := tryLiar(t, Since{}, first); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: got %v", name, err)
		}
	}
	if _, err := tryLiar(t, Since{Stdout: Position{At, 11}}, hello); !errors.Is(err, ErrProtocol) {
		t.Errorf("another start than asked for: got %v", err)
	}
}

// TestQuery: the relay parses the query of a client to the same request.
func TestQuery(t *testing.T) {
	for _, r := range []request{
		{flow: true},
		{write: true, flow: true, takeOver: true, client: strings.Repeat("c", 16), since: Since{Position{At, 5}, Position{Kind: End}}},
	} {
		if got, err := parseRequest(r.query().Encode()); err != nil || got != r {
			t.Errorf("%+v: got %+v, %v", r, got, err)
		}
	}
	if _, err := url.Parse("/?" + request{}.query().Encode()); err != nil {
		t.Error(err)
	}
}

// TestStuckWriter: a peer that reads nothing delays neither a take-over nor the end of the
// relay.
func TestStuckWriter(t *testing.T) {
	t.Run("close", func(t *testing.T) { testStuckWriter(t, (*Hub).Close) })
	t.Run("remove", func(t *testing.T) { testStuckWriter(t, (*Hub).Remove) })
}

func testStuckWriter(t *testing.T, end func(*Hub)) {
	synctest.Test(t, func(t *testing.T) {
		p := newProc(64 << 10)
		p.out.Write(make([]byte, 1000))
		h, l, stop := servePipe(p, Options{Stall: time.Hour, Dead: time.Hour})
		defer stop()
		d := websocket.Dialer{NetDialContext: l.dial}
		ws, _, err := d.Dial("ws://pipe/?mode=write", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer ws.Close()
		time.Sleep(time.Minute) // pings cannot be sent either
		start := time.Now()
		second, err := Dial(t.Context(), DialOptions{URL: "ws://pipe/", NetDial: l.dial, Write: true, TakeOver: true})
		if err != nil || !second.Hello().Writer || time.Since(start) != 0 {
			t.Fatalf("took over after %v: %v", time.Since(start), err)
		}
		if d := next[Data](t, second); len(d.Bytes) != 1000 {
			t.Errorf("the second writer got %d bytes", len(d.Bytes))
		}
		go collect(second)
		end(h)
		if d := time.Since(start); d > 15*time.Second {
			t.Errorf("stopping took %v", d)
		}
	})
}

// TestSameObserverReplacesItself: so dead connections do not add up.
func TestSameObserverReplacesItself(t *testing.T) {
	s := serve(t, newProc(4<<10), Options{Linger: 10 * time.Millisecond})
	for range 5 {
		s.dial(func(o *DialOptions) { o.ClientID = strings.Repeat("o", 16) })
	}
	await(t, "one connection", func() bool { return s.hub.o.Counters.Connections.Load() == 1 })
}
