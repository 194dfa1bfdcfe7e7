package door

import (
	"bufio"
	"bytes"
	"compress/flate"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/langbot/protocol"
)

func TestMain(m *testing.M) { testutil.MainUnprivileged(m) }

const patience = 20 * time.Second

// backend does what a test wants.
type backend struct {
	do func(context.Context, *Conn, protocol.Request) (any, error)

	mu             sync.Mutex
	opened, closed int
	doing          int
	over           chan *Conn // gets each connection that was closed
	relays         chan string
	hold           chan struct{} // if not nil, relays end when it is closed
	generations    map[string]int64
	ready          bool
}

func newBackend(do func(context.Context, *Conn, protocol.Request) (any, error)) *backend {
	if do == nil {
		do = func(_ context.Context, _ *Conn, r protocol.Request) (any, error) {
			return map[string]string{"action": r.Action}, nil
		}
	}
	return &backend{do: do, over: make(chan *Conn, 1000), relays: make(chan string, 100), generations: map[string]int64{}}
}

func (b *backend) Do(ctx context.Context, c *Conn, r protocol.Request) (any, error) {
	b.mu.Lock()
	b.doing++
	b.mu.Unlock()
	defer func() { b.mu.Lock(); b.doing--; b.mu.Unlock() }()
	return b.do(ctx, c, r)
}

func (b *backend) Opened(c *Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.opened++
	c.Value = b.opened
}

func (b *backend) Closed(c *Conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed++
	if b.doing > 0 && b.closed == b.opened {
		panic("Closed while an action runs")
	}
	b.over <- c
}

func (b *backend) Relay(w http.ResponseWriter, _ *http.Request, c protocol.Context, physical, process string) {
	b.relays <- c.Logical(physical) + " " + process
	if b.hold != nil {
		<-b.hold
	}
	w.WriteHeader(http.StatusBadRequest)
}

func (b *backend) Live() any { return map[string]bool{"live": true} }

func (b *backend) Ready(context.Context) (any, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return map[string]bool{"ready": b.ready}, b.ready
}

func (b *backend) Current(instance, workspace string) (int64, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	g, ok := b.generations[instance+" "+workspace]
	return g, ok
}

// serve runs a door and returns its address.
func serve(t *testing.T, b Backend, o Options, change ...func(*times)) (*Door, string) {
	t.Helper()
	d := New(b, o)
	for _, f := range change {
		f(&d.times)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- d.Serve(l, nil) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := d.Shutdown(ctx); err != nil {
			t.Errorf("Shutdown: %v", err)
		}
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return d, l.Addr().String()
}

func headers(kv ...string) http.Header {
	h := http.Header{}
	for i := 0; i < len(kv); i += 2 {
		h.Set(kv[i], kv[i+1])
	}
	return h
}

// dial connects as LangBot does.
func dial(t *testing.T, addr string, compressed bool, kv ...string) *websocket.Conn {
	t.Helper()
	d := websocket.Dialer{EnableCompression: compressed, WriteBufferSize: 64 << 10, HandshakeTimeout: patience}
	ws, resp, err := d.Dial("ws://"+addr+"/rpc/ws", headers(append([]string{instanceHeader, "i"}, kv...)...))
	if err != nil {
		t.Fatalf("dial: %v, %v", err, resp)
	}
	t.Cleanup(func() { ws.Close() })
	return ws
}

// answer is a reply as a client reads it.
type answer struct {
	Seq         json.RawMessage `json:"seq_id"`
	Code        int
	Message     string
	Data        json.RawMessage
	ChunkStatus string `json:"chunk_status"`
}

func recv(t *testing.T, ws *websocket.Conn) answer {
	t.Helper()
	ws.SetReadDeadline(time.Now().Add(patience))
	kind, b, err := ws.ReadMessage()
	if err != nil || kind != websocket.TextMessage {
		t.Fatalf("kind %d, %v", kind, err)
	}
	var a answer
	if err := json.Unmarshal(b, &a); err != nil {
		t.Fatalf("%s: %v", b, err)
	}
	return a
}

func send(t *testing.T, ws *websocket.Conn, msg string) {
	t.Helper()
	if err := ws.WriteMessage(websocket.TextMessage, []byte(msg)); err != nil {
		t.Fatal(err)
	}
}

// request is a message that asks for an action.
func request(seq int, action string) string {
	return fmt.Sprintf(`{"seq_id": %d, "action": %q, "data": {}}`, seq, action)
}

// closing reads until the close frame and returns its code and reason.
func closing(t *testing.T, ws *websocket.Conn) (int, string) {
	t.Helper()
	ws.SetReadDeadline(time.Now().Add(patience))
	for {
		_, _, err := ws.ReadMessage()
		if ce, ok := err.(*websocket.CloseError); ok {
			return ce.Code, ce.Text
		}
		if err != nil {
			t.Fatalf("no close frame: %v", err)
		}
	}
}

// raw is a client that makes its own frames.
type raw struct {
	t *testing.T
	net.Conn
	r    *bufio.Reader
	resp *http.Response
}

// dialRaw sends a request with these headers and reads the answer to it.
func dialRaw(t *testing.T, addr, path string, kv ...string) *raw {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(patience))
	h := headers("Host", addr)
	if path == "/rpc/ws" && len(kv) == 0 {
		kv = upgradeHeaders
	}
	for i := 0; i < len(kv); i += 2 {
		h.Set(kv[i], kv[i+1])
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "GET %s HTTP/1.1\r\n", path)
	h.Write(&b)
	b.WriteString("\r\n")
	if _, err := c.Write(b.Bytes()); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(c)
	resp, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	return &raw{t, c, r, resp}
}

var upgradeHeaders = []string{"Upgrade", "websocket", "Connection", "Upgrade", "Sec-WebSocket-Key", "mU9tELqwup70UkB3oGfzCg==", "Sec-WebSocket-Version", "13",
	"Sec-WebSocket-Extensions", "permessage-deflate; client_max_window_bits", instanceHeader, "i"}

// frame is a frame with a mask. first has FIN, RSV and the opcode.
func frame(first byte, payload []byte) []byte {
	b := head(first, uint64(len(payload)))
	mask := b[len(b)-4:]
	for i, c := range payload {
		b = append(b, c^mask[i%4])
	}
	return b
}

// head is the beginning of a frame that announces n bytes.
func head(first byte, n uint64) []byte {
	b := []byte{first}
	switch {
	case n < 126:
		b = append(b, 0x80|byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0x80|126), uint16(n))
	default:
		b = binary.BigEndian.AppendUint64(append(b, 0x80|127), n)
	}
	return append(b, 1, 2, 3, 4)
}

// deflated is a compressed message (RFC 7692, 7.2.1).
func deflated(msg []byte) []byte {
	var b bytes.Buffer
	w, _ := flate.NewWriter(&b, flate.BestSpeed)
	w.Write(msg)
	w.Flush()
	return bytes.TrimSuffix(b.Bytes(), []byte{0, 0, 0xff, 0xff})
}

func (c *raw) write(frames ...[]byte) {
	c.t.Helper()
	if _, err := c.Write(bytes.Join(frames, nil)); err != nil {
		c.t.Fatal(err)
	}
}

// read returns the next frame.
func (c *raw) read() (first byte, payload []byte) {
	c.t.Helper()
	var h [2]byte
	if _, err := io.ReadFull(c.r, h[:]); err != nil {
		c.t.Fatalf("reading a frame: %v", err)
	}
	n := uint64(h[1])
	switch n {
	case 126:
		var l [2]byte
		io.ReadFull(c.r, l[:])
		n = uint64(binary.BigEndian.Uint16(l[:]))
	case 127:
		var l [8]byte
		io.ReadFull(c.r, l[:])
		n = binary.BigEndian.Uint64(l[:])
	}
	payload = make([]byte, n)
	if _, err := io.ReadFull(c.r, payload); err != nil {
		c.t.Fatalf("reading a frame of %d bytes: %v", n, err)
	}
	return h[0], payload
}

// wantClose reads a close frame with this code, answers it and wants the end of the stream.
func (c *raw) wantClose(code int, reason string) {
	c.t.Helper()
	first, payload := c.read()
	for first == 0x81 || first == 0x89 || first == 0x8a {
		first, payload = c.read()
	}
	if first != 0x88 || len(payload) < 2 || int(binary.BigEndian.Uint16(payload)) != code || !strings.Contains(string(payload[2:]), reason) {
		c.t.Fatalf("got frame %#x %q, want close %d %q", first, payload, code, reason)
	}
	c.Write(frame(0x88, payload[:2])) // may come too late
	if n, err := io.Copy(io.Discard, c.r); n > 0 || err != nil {
		c.t.Fatalf("after the close: %d bytes, %v", n, err)
	}
}

// dialIdle connects and says nothing.
func dialIdle(t *testing.T, addr string) {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
}

// listen is serve for benchmarks.
func listen(b *testing.B, d *Door) (addr string, stop func()) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		d.Serve(l, nil)
		close(done)
	}()
	return l.Addr().String(), func() {
		d.Shutdown(context.Background())
		<-done
	}
}
