package linerelay

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/testutil"
)

func TestRelay(t *testing.T) {
	p := newProc(64 << 10)
	s := serve(t, p, nil)
	p.out.print("before\nanyone\n")
	if s.relay.Attached() {
		t.Error("attached without a client")
	}
	c := s.dial()
	c.wantMessages("before\n", "anyone\n")
	if !s.relay.Attached() {
		t.Error("not attached")
	}
	<-p.touched
	c.send(`{"id":1}`)
	c.send("inner\nnewline\n")
	c.send("")
	c.WriteMessage(websocket.BinaryMessage, []byte("ignored"))
	c.send("é")
	p.in.awaitText(t, "{\"id\":1}\ninner\nnewline\n\n\né\n")
	p.out.print("{\"id\":1,\"result\":{}}\nno newline é\xe2\x82")
	c.wantMessages("{\"id\":1,\"result\":{}}\n", "no newline é")
	p.out.print("\xac\n")
	c.wantMessages("€\n")
	p.out.print("last")
	p.end()
	c.wantMessages("last")
	c.wantClose(1000, "")
	if n := p.out.Released(); n != p.out.end {
		t.Errorf("released %d of %d bytes", n, p.out.end)
	}
	await(t, "detachment", func() bool { return !s.relay.Attached() })
	again := s.dial() // nothing is left of a process that has ended
	again.wantClose(1000, "")
}

// TestComesAgain: the process and its stdin continue without a client, and output that was
// sent to one client is not sent again.
func TestComesAgain(t *testing.T) {
	p := newProc(64 << 10)
	s := serve(t, p, nil)
	for i := range 5 {
		c := s.dial()
		line := fmt.Sprintf("line %d\n", i)
		p.out.print(line)
		c.wantMessages(line)
		c.send("x")
		p.in.awaitText(t, strings.Repeat("x\n", i+1))
		if i%2 == 0 {
			c.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(1000, "bye"), time.Now().Add(time.Second))
			c.wantClose(1000, "")
		} else {
			c.Close()
		}
		await(t, "detachment", func() bool { return !s.relay.Attached() })
		p.out.print(fmt.Sprintf("alone %d\n", i))
		c = s.dial()
		c.wantMessages(fmt.Sprintf("alone %d\n", i))
		c.Close()
		await(t, "detachment", func() bool { return !s.relay.Attached() })
	}
}

func TestUpgrade(t *testing.T) {
	s := serve(t, newProc(4<<10), nil)
	url := strings.Replace(s.http.URL, "http", "ws", 1)
	for _, c := range []struct {
		offered []string
		want    string
	}{{nil, ""}, {[]string{"mcp"}, "mcp"}, {[]string{"other", "mcp"}, "mcp"}, {[]string{"other"}, ""}} {
		d := websocket.Dialer{Subprotocols: c.offered, EnableCompression: true}
		ws, resp, err := d.Dial(url, nil)
		if err != nil {
			t.Fatal(err)
		}
		if ws.Subprotocol() != c.want || resp.Header.Get("Sec-WebSocket-Extensions") != "" {
			t.Errorf("offered %q: header %v, want subprotocol %q and no compression", c.offered, resp.Header, c.want)
		}
		ws.Close()
	}
	for what, status := range map[string]int{"no upgrade": 400, "foreign origin": 403} {
		req, _ := http.NewRequest("GET", s.http.URL, nil)
		if what == "foreign origin" {
			req.Header = http.Header{"Connection": {"upgrade"}, "Upgrade": {"websocket"}, "Sec-Websocket-Version": {"13"},
				"Sec-Websocket-Key": {"AAAAAAAAAAAAAAAAAAAAAA=="}, "Origin": {"http://evil.example"}}
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != status {
			t.Errorf("%s: status %d, want %d", what, resp.StatusCode, status)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestFlood: all output arrives, in order, before the close, even if the process ended long
// before.
func TestFlood(t *testing.T) {
	for _, history := range []int{4 << 10, 1 << 20} {
		t.Run(fmt.Sprint(history), func(t *testing.T) {
			p := newProc(history)
			s := serve(t, p, nil)
			const lines = 50000
			go func() {
				var b bytes.Buffer
				for i := range lines {
					fmt.Fprintf(&b, "%0*d\n", 1+i%200, i)
					if b.Len() > 3000 {
						p.out.print(b.String())
						b.Reset()
					}
				}
				p.out.print(b.String() + "end")
				p.end()
			}()
			got, closed := s.dial().rest()
			if len(got) != lines+1 || closed.Code != 1000 {
				t.Fatalf("%d messages, close %d, want %d and 1000", len(got), closed.Code, lines+1)
			}
			for i, m := range got[:lines] {
				if m != fmt.Sprintf("%0*d\n", 1+i%200, i) {
					t.Fatalf("message %d is %.200q", i, m)
				}
			}
		})
	}
}

// TestLongLines: a line of up to maxMessage bytes is one message, even if the ring cannot
// hold it.
func TestLongLines(t *testing.T) {
	p := newProc(600 << 10)
	s := serve(t, p, nil)
	c := s.dial()
	long := strings.Repeat("0123456789é", 1<<20/12)
	text := long + "\n" + strings.Repeat("y", 3<<20) + "\nend\n"
	go p.out.print(text)
	c.wantMessages(wanted([]byte(text))...)
}

// TestProcessDoesNotRead: a client may continue to send for a while, then the relay stops
// reading from it. It stays attached and gets output, and its messages arrive whole.
func TestProcessDoesNotRead(t *testing.T) {
	p := newProc(64 << 10)
	p.in.allow = 3
	s := serve(t, p, nil)
	c := s.dial()
	message := strings.Repeat("m", 99999)
	var sent sync.WaitGroup
	const count = 400 // more than queue and sockets hold
	sent.Go(func() {
		for range count {
			if err := c.WriteMessage(websocket.TextMessage, []byte(message)); err != nil {
				t.Error(err)
				return
			}
		}
	})
	q := &s.relay.stdin
	await(t, "a full queue", func() bool { q.mu.Lock(); defer q.mu.Unlock(); return q.size >= maxQueued })
	for i := range 5 {
		p.out.print("alive\n")
		c.wantMessages("alive\n")
		if q.mu.Lock(); q.size > maxQueued+len(message)+1 {
			t.Errorf("%d: %d bytes are queued", i, q.size)
		}
		q.mu.Unlock()
	}
	p.in.change(func() { p.in.allow = -1 })
	sent.Wait()
	p.in.awaitText(t, strings.Repeat(message+"\n", count))
}

// TestMessagesStayWhole: if a client disconnects, or is replaced, while the process slowly
// reads its message, the message is still written whole, before those of the next client.
func TestMessagesStayWhole(t *testing.T) {
	p := newProc(64 << 10)
	p.in.allow = 2
	s := serve(t, p, nil)
	first := s.dial()
	first.send("first")
	p.in.awaitText(t, "fi")
	second := s.dial()
	first.wantClose(1000, "another client attached")
	second.send("second")
	second.Close()
	await(t, "detachment", func() bool { return !s.relay.Attached() })
	p.in.change(func() { p.in.allow = -1 })
	p.in.awaitText(t, "first\nsecond\n")
}

func TestStdinIsClosed(t *testing.T) {
	p := newProc(64 << 10)
	p.in.broken = true
	s := serve(t, p, nil)
	c := s.dial()
	for range 100 {
		c.send(strings.Repeat("x", 100000))
	}
	p.out.print("still here\n")
	c.wantMessages("still here\n")

	p = newProc(64 << 10)
	src := p.source()
	src.Stdin = nil
	c = serveSource(t, p, src, nil).dial()
	c.send("nobody")
	p.out.print("here too\n")
	c.wantMessages("here too\n")
}

func TestSizes(t *testing.T) {
	p := newProc(64 << 10)
	s := serve(t, p, nil)
	c := s.dial()
	message := strings.Repeat("x", maxReceive)
	c.send(message)
	p.in.awaitText(t, message+"\n")
	c.WriteMessage(websocket.TextMessage, []byte(message+"x")) // the connection may be cut off meanwhile
	c.wantClose(1009, "")
	if got := p.in.text(); len(got) != maxReceive+1 {
		t.Errorf("the process got %d bytes", len(got))
	}
}

// TestBrokenClient: a violation ends its own connection, and the process gets nothing of it.
func TestBrokenClient(t *testing.T) {
	p := newProc(64 << 10)
	s := serve(t, p, nil)
	for _, c := range []struct {
		name   string
		frames string
		code   int
	}{
		{"no UTF-8", "\x81\x81\x00\x00\x00\x00\xff", 1007},
		{"no mask", "\x81\x01x", 1002},
		{"reserved bit", "\xc1\x81\x00\x00\x00\x00x", 1002},
		{"unknown opcode", "\x83\x81\x00\x00\x00\x00x", 1002},
		{"continuation of nothing", "\x80\x81\x00\x00\x00\x00x", 1002},
		{"long ping", "\x89\xfe\x00\x7e\x00\x00\x00\x00" + strings.Repeat("x", 126), 1002},
		{"enormous", "\x81\xff\x7f\xff\xff\xff\xff\xff\xff\xff\x00\x00\x00\x00", 1009},
	} {
		t.Run(c.name, func(t *testing.T) {
			ws := s.dial()
			ws.t = t
			ws.NetConn().Write([]byte(c.frames))
			if rest, closed := ws.rest(); len(rest) != 0 || closed.Code != c.code {
				t.Errorf("%d messages, close %d, want none and %d", len(rest), closed.Code, c.code)
			}
		})
	}
	for _, frames := range []string{"", "\x81", "\x81\x85\x00\x00\x00\x00he", "\x01\x82\x00\x00\x00\x00he"} {
		ws := s.dial()
		ws.NetConn().Write([]byte(frames))
		ws.Close() // in the middle of a message
		await(t, "detachment", func() bool { return !s.relay.Attached() })
	}
	c := s.dial()
	c.send("fine")
	p.in.awaitText(t, "fine\n")
}

// TestPeerThatNeverReads: such a client is disconnected. The next one gets the output that
// was not sent, from the start of a line on.
func TestPeerThatNeverReads(t *testing.T) {
	p := newProc(256 << 10)
	s := serve(t, p, func(o *times) { o.stall = 100 * time.Millisecond })
	c := s.dial()
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			if p.out.write(stop, fmt.Appendf(nil, "%099d\n", i)) != nil {
				return
			}
		}
	})
	await(t, "attachment", s.relay.Attached)
	await(t, "the end of the connection", func() bool { return !s.relay.Attached() })
	released := p.out.Released()
	if released%100 != 0 || released == 0 {
		t.Errorf("released %d bytes: not whole lines", released)
	}
	next := s.dial()
	if got, want := next.next(), fmt.Sprintf("%099d\n", released/100); got != want {
		t.Errorf("the next client begins with %q, want %q", got, want)
	}
	c.Close()
	next.Close()
	close(stop)
	wg.Wait()
}

// TestTakeOverOfStuck: a client that does not read does not delay the next one, which gets
// only the output that was not sent.
func TestTakeOverOfStuck(t *testing.T) {
	p := newProc(1 << 20)
	s := serve(t, p, func(o *times) { o.stall, o.ping = time.Hour, time.Hour }) // nothing else ends it
	s.dial()                                                                    // never reads
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := 0; ; i++ {
			if p.out.write(stop, fmt.Appendf(nil, "%099d\n", i)) != nil {
				return
			}
		}
	})
	var last int64 = -1
	await(t, "the output to stand still", func() bool {
		time.Sleep(50 * time.Millisecond)
		was := last
		last = p.out.Released()
		return last == was && last > 0
	})
	c := s.dial()
	first := c.next()
	var i int64
	if fmt.Sscanf(first, "%d\n", &i); i*100 < last || len(first) != 100 {
		t.Errorf("the first message is %q, want one from %d on", first, last/100)
	}
	for n := range int64(1000) {
		if got, want := c.next(), fmt.Sprintf("%099d\n", i+1+n); got != want {
			t.Fatalf("got %q, want %q", got, want)
		}
	}
	close(stop)
	wg.Wait()
}

// TestTakeOverKeepsLines: the next client gets the current line from its start.
func TestTakeOverKeepsLines(t *testing.T) {
	p := newProc(1 << 20)
	s := serve(t, p, func(o *times) { o.document = time.Hour })
	first := s.dial()
	half := strings.Repeat("x", 300<<10)
	p.out.print("a\n" + half)
	first.wantMessages("a\n")
	_, r, err := first.NextReader()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := r.Read(make([]byte, 1)); err != nil { // a part of it has been sent
		t.Fatal(err)
	}
	second := s.dial()
	// The first client may still get more of the line until it is disconnected.
	if _, err := io.Copy(io.Discard, r); !websocket.IsCloseError(err, websocket.CloseNormalClosure) {
		t.Errorf("the first client's line ends with %v", err)
	}
	p.out.print(half + "\n")
	second.wantMessages(half + half + "\n")
}

// TestStorm: a hundred clients connect at once, again and again. Each message is sent to one
// of them, and none hangs.
func TestStorm(t *testing.T) {
	p := newProc(64 << 10)
	s := serve(t, p, nil)
	stop, total := make(chan struct{}), 0
	var writer, clients sync.WaitGroup
	writer.Go(func() {
		for ; p.out.write(stop, fmt.Appendf(nil, "%d\n", total)) == nil; total++ {
		}
	})
	url := strings.Replace(s.http.URL, "http", "ws", 1)
	for i := range 100 {
		clients.Go(func() {
			for range 3 {
				c, _, err := websocket.DefaultDialer.Dial(url, nil)
				if err != nil {
					t.Error(err)
					return
				}
				c.SetReadDeadline(time.Now().Add(testutil.Patience()))
				c.WriteMessage(websocket.TextMessage, fmt.Appendf(nil, "%d", i))
				last := -1
				for n := 0; ; n++ {
					_, m, err := c.ReadMessage()
					if closed := (*websocket.CloseError)(nil); errors.As(err, &closed) && closed.Code == 1000 && closed.Text == "another client attached" {
						break
					}
					if err == nil && n == 5000 {
						break // it disconnects without a close frame
					}
					var this int
					if _, serr := fmt.Sscanf(string(m), "%d\n", &this); err != nil || serr != nil || last >= 0 && this != last+1 {
						t.Errorf("client %d: %q after %d, %v", i, m, last, err)
						break
					}
					last = this
				}
				c.Close()
			}
		})
	}
	clients.Wait()
	close(stop)
	writer.Wait()
	c := s.dial()
	c.send("end")
	await(t, "stdin", func() bool { return strings.HasSuffix(p.in.text(), "end\n") })
	for line := range strings.Lines(p.in.text()) {
		if n := len(strings.TrimSpace(line)); n < 1 || n > 3 {
			t.Errorf("the process read %q", line)
		}
	}
}

func TestClose(t *testing.T) {
	p := newProc(64 << 10)
	s := serve(t, p, nil)
	c := s.dial()
	p.out.print("x\n")
	c.wantMessages("x\n")
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.relay.Close(1001, "Box runtime shutting down")
	}()
	c.wantClose(1001, "Box runtime shutting down")
	<-closed
	if s.relay.Attached() {
		t.Error("still attached")
	}
	p.out.print("y\n")
	s.dial().wantClose(1001, "Box runtime shutting down")
	s.relay.Close(1000, "") // the first call counts
	s.dial().wantClose(1001, "Box runtime shutting down")
	if p.out.Released() != 2 {
		t.Errorf("released %d", p.out.Released())
	}
}

// TestCloseIsBounded: neither a client nor the process can delay Close.
func TestCloseIsBounded(t *testing.T) {
	p := newProc(1 << 20)
	p.in.allow = 0
	s := serve(t, p, func(o *times) { o.stall, o.ping = time.Hour, time.Hour }) // nothing else ends it
	c := s.dial()                                                               // neither reads nor answers
	for range 20 {
		c.send(strings.Repeat("x", 100<<10))
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for p.out.write(stop, bytes.Repeat([]byte("line\n"), 1000)) == nil {
		}
	})
	await(t, "a write", func() bool { return p.in.Accepted() == 0 && p.out.Released() > 1<<20 })
	s.relay.Close(1000, "")
	released := p.out.Released()
	if s.relay.stdin.in.Accepted() != 0 {
		t.Error("stdin was taken")
	}
	close(stop)
	wg.Wait()
	if p.out.Released() != released {
		t.Error("released after Close")
	}
}

// TestGone: the process is removed, or its output can no longer be read.
func TestGone(t *testing.T) {
	for _, how := range []string{"gone", "error and gone", "error and done"} {
		p := newProc(64 << 10)
		c := serve(t, p, nil).dial()
		p.out.print("x\nrest")
		c.wantMessages("x\n")
		if how != "gone" {
			p.out.change(func() { p.out.err = errors.New("the box is lost") })
		}
		if how == "error and done" {
			close(p.done)
		} else {
			close(p.gone)
		}
		if rest, closed := c.rest(); strings.Join(rest, "") != "rest" || closed.Code != 1000 {
			t.Errorf("%s: %q, close %d", how, rest, closed.Code)
		}
	}
}

// TestHold: the output of a lost box stays readable while a client is attached, so the
// client gets all of it.
func TestHold(t *testing.T) {
	p := newProc(64 << 10)
	src := p.source()
	var mu sync.Mutex
	held := 0
	hold := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		held += n
	}
	src.Hold = func() func() {
		hold(1)
		return func() { hold(-1) }
	}
	s := serveSource(t, p, src, nil)
	c := s.dial()
	p.out.print("before\n")
	c.wantMessages("before\n")
	mu.Lock()
	if held != 1 {
		t.Errorf("held %d times", held)
	}
	mu.Unlock()
	p.out.print("last words")
	close(p.done)
	close(p.gone)
	c.wantMessages("last words")
	c.wantClose(1000, "")
	await(t, "the release", func() bool { mu.Lock(); defer mu.Unlock(); return held == 0 })
}

// TestGap: bytes that were overwritten are missing, and the bytes around them are not joined.
func TestGap(t *testing.T) {
	p := newProc(4 << 10)
	p.out.drop = true
	s := serve(t, p, nil)
	c := s.dial()
	p.out.print("before")
	c.wantMessages("before")
	p.out.change(func() { // as if no one had read for a while
		p.out.end += 100000
		copy(p.out.buf, bytes.Repeat([]byte("z"), 4<<10))
		p.out.buf[(p.out.end-1)%(4<<10)] = '\n'
	})
	if m := c.next(); len(m) != 4<<10 || strings.Trim(m, "z") != "\n" {
		t.Errorf("%d bytes, %.100q", len(m), m)
	}
}

// TestGoneWhileHeld: a client disconnects while its messages wait for the process, so that
// the relay does not read. A ping that cannot be sent shows it.
func TestGoneWhileHeld(t *testing.T) {
	p := newProc(64 << 10)
	p.in.allow = 0
	s := serve(t, p, func(o *times) { o.ping, o.pong = 20*time.Millisecond, 500*time.Millisecond })
	c := s.dial()
	message := []byte(strings.Repeat("m", maxQueued))
	for range 2 {
		if err := c.WriteMessage(websocket.TextMessage, message); err != nil {
			t.Fatal(err)
		}
	}
	current := func() *conn { s.relay.mu.Lock(); defer s.relay.mu.Unlock(); return s.relay.current }
	await(t, "a message that waits", func() bool { c := current(); return c != nil && c.holding.Load() })
	c.Close()
	await(t, "the end of the connection", func() bool { return current() == nil })
}

// TestPings: the client's pings are answered, even during a flood of output.
func TestPings(t *testing.T) {
	p := newProc(64 << 10)
	s := serve(t, p, nil)
	c := s.dial()
	// A pong follows the megabytes in the sockets: long lines make them few messages.
	line := strings.Repeat("x", 999) + "\n"
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for p.out.write(stop, []byte(strings.Repeat(line, 10))) == nil {
		}
	})
	pongs := 0
	c.SetPongHandler(func(text string) error {
		if text != fmt.Sprint(pongs) {
			t.Errorf("pong %q, want %d", text, pongs)
		}
		pongs++
		c.WriteControl(websocket.PingMessage, []byte(fmt.Sprint(pongs)), time.Now().Add(time.Second))
		return nil
	})
	c.WriteControl(websocket.PingMessage, []byte("0"), time.Now().Add(time.Second))
	for pongs < 10 {
		c.wantMessages(line)
	}
	close(stop)
	wg.Wait()
}
