package relay

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gorilla/websocket"
)

// TestReplacedConnectionDoesNotClaim: of two concurrent connections of a client, the newer
// one stays the writer, whichever claims first.
func TestReplacedConnectionDoesNotClaim(t *testing.T) {
	h := NewHub(newProc(4<<10).source(), Options{})
	defer h.Close()
	req := request{write: true, client: strings.Repeat("me", 10)}
	older, newer := newConn(h, req, all), newConn(h, req, all)
	h.replaceOlder(older)
	h.replaceOlder(newer)
	if ref := h.claimWriter(newer); ref != nil {
		t.Fatalf("the newer one: %+v", ref)
	}
	if ref := h.claimWriter(older); ref == nil {
		t.Error("a connection that is being closed has become the writer")
	}
	if h.writer != newer || !newer.writer.Load() {
		t.Error("the newer one is not the writer any more")
	}
}

// TestTakeOverIsNoted: even if there was no writer when the client asked.
func TestTakeOverIsNoted(t *testing.T) {
	h := NewHub(newProc(4<<10).source(), Options{})
	defer h.Close()
	noted := 0
	g := Grant{Write: true, TakeOver: true, Note: func(Act, int) error { noted++; return nil }}
	first, second := newConn(h, request{write: true}, g), newConn(h, request{write: true, takeOver: true}, g)
	if ref := h.mayClaim(second); ref != nil || noted != 0 {
		t.Fatalf("nobody writes: %+v, noted %d times", ref, noted)
	}
	if ref := h.claimWriter(first); ref != nil {
		t.Fatalf("%+v", ref)
	}
	if ref := h.claimWriter(second); ref == nil || h.writer != first {
		t.Errorf("took over, noted %d times", noted)
	}
	if ref := h.mayClaim(second); ref != nil || noted != 1 {
		t.Fatalf("coming again: %+v, noted %d times", ref, noted)
	}
	if ref := h.claimWriter(second); ref != nil || h.writer != second {
		t.Errorf("%+v", ref)
	}
}

// TestObserversLeaveRoomForTheWriter: observers cannot lock out the writer.
func TestObserversLeaveRoomForTheWriter(t *testing.T) {
	s := serve(t, newProc(4<<10), Options{MaxConns: 2})
	s.dial(nil)
	s.dial(nil)
	s.dial(asWriter)
	for range writerReserve - 1 {
		s.dial(asTakeOver)
	}
	_, err := s.tryDial(asTakeOver)
	wantRefusal(t, err, 429)
}

// TestRefusalsDoNotStopStdin: the relay continues to read from a client that does not read
// refusals because it is sending.
func TestRefusalsDoNotStopStdin(t *testing.T) {
	p := newProc(4 << 20)
	src := p.source()
	src.Resize = nil
	s := serveSource(t, p, src, Options{Window: maxWindow, StdinWindow: 16 << 20, Stall: time.Minute})
	p.out.Write(make([]byte, 4<<20))
	ws := s.raw("mode=write")
	if _, _, err := ws.ReadMessage(); err != nil { // Hello
		t.Fatal(err)
	}
	ws.WriteMessage(websocket.BinaryMessage, []byte{typeResize, 0, 1, 0, 1})
	const n = 12 << 20 // more than fits into the sockets, and within the window
	ws.SetWriteDeadline(time.Now().Add(20 * time.Second))
	for off := 0; off < n; off += MaxStdin {
		if err := ws.WriteMessage(websocket.BinaryMessage, frame(typeStdin, binary.BigEndian.AppendUint64(nil, uint64(off)), make([]byte, MaxStdin))); err != nil {
			t.Fatalf("at %d: %v", off, err)
		}
	}
	for refused := false; !refused; {
		_, msg, err := ws.ReadMessage()
		if err != nil {
			t.Fatal(err)
		}
		refused = msg[0] == typeRefused
	}
}

// TestLogsWriteError: the end of a stream does not hide a failed write.
func TestLogsWriteError(t *testing.T) {
	p := newProc(4 << 10)
	h := NewHub(Source{Stdout: lastRead{p.out}, Done: p.done}, Options{})
	defer h.Close()
	p.out.Write([]byte("x"))
	broken := errors.New("broken")
	if err := h.Logs(t.Context(), writerFunc(func([]byte) (int, error) { return 0, broken }), LogOptions{}); !errors.Is(err, broken) {
		t.Errorf("got %v", err)
	}
}

// lastRead returns io.EOF together with the last bytes.
type lastRead struct{ *ring }

func (l lastRead) ReadAt(ctx context.Context, p []byte, off int64) (int, int64, error) {
	n, at, err := l.ring.ReadAt(ctx, p, off)
	return n, at, errors.Join(err, io.EOF)
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// TestNothingFollowsTheEnd: after a message was dropped, none may be sent, or the client
// would miss some output, or the Hello.
func TestNothingFollowsTheEnd(t *testing.T) {
	h := NewHub(newProc(4<<10).source(), Options{})
	defer h.Close()
	c := newConn(h, request{}, Grant{})
	c.cancel(closeRestart)
	for range 100 {
		c.send([]byte("x")) // there is no WebSocket to send it with
	}
}

// TestHelloComesFirst: even if the connection is demoted or ended at once.
func TestHelloComesFirst(t *testing.T) {
	s := serve(t, newProc(4<<10), Options{})
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 50 {
				c, err := s.tryDial(asTakeOver)
				if errors.Is(err, ErrProtocol) {
					t.Error(err)
				}
				if err == nil {
					c.Close()
				}
			}
		})
	}
	wg.Wait()
}

// TestManySlowReaders: slow readers occupy a bounded amount of memory, and a reader that is
// not slow still gets everything.
func TestManySlowReaders(t *testing.T) {
	p := newProc(1 << 20)
	want := pattern(7, 1<<20)
	p.out.Write(want)
	_, l, stop := servePipe(p, Options{MaxConns: maxLarge + 100, Stall: time.Minute, Linger: time.Millisecond})
	defer stop()
	for range maxLarge + 50 {
		c, err := l.dial(t.Context(), "", "")
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		io.WriteString(c, "GET / HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n")
		// Until the first small Data frame has been read.
		if _, err := io.CopyN(io.Discard, c, 129+2+2+helloSize+4+dataHeader+smallRead); err != nil {
			t.Fatal(err)
		}
	}
	await(t, "large buffers to be used", func() bool { return largeInUse.Load() == maxLarge })
	c, err := Dial(t.Context(), DialOptions{URL: "http://x", NetDial: l.dial})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var got []byte
	for len(got) < len(want) {
		got = append(got, next[Data](t, c).Bytes...)
	}
	if !bytes.Equal(got, want) {
		t.Error("it got something else")
	}
	if n := largeInUse.Load(); n > maxLarge {
		t.Errorf("%d large buffers are in use", n)
	}
}

// A followed log ends when the process has ended, which is recorded after its output is closed: a
// client that waited for it learns the exit code at once.
func TestLogsFollowUntilTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newProc(4 << 10)
		h := NewHub(p.source(), Options{})
		defer h.Close()
		var got bytes.Buffer
		result := make(chan error, 1)
		go func() { result <- h.Logs(t.Context(), &got, LogOptions{Follow: true}) }()
		p.out.Write([]byte("last"))
		p.out.close()
		synctest.Wait()
		select {
		case err := <-result:
			t.Fatalf("it ended before the process: %v", err)
		default:
		}
		close(p.done)
		if err := <-result; err != nil || got.String() != "last" {
			t.Errorf("%q, %v", got.String(), err)
		}
	})
}
