package door

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/langbot/protocol"
)

func TestMain(m *testing.M) { testutil.MainUnprivileged(m) }

// backend is a Backend whose actions a test controls.
type backend struct {
	do func(context.Context, *Conn, protocol.Request) (any, error)

	mu             sync.Mutex
	opened, closed int
	doing, done    int
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
	defer func() { b.mu.Lock(); b.doing--; b.done++; b.mu.Unlock() }()
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return serveOn(t, l, b, o, change...)
}

func serveOn(t *testing.T, l net.Listener, b Backend, o Options, change ...func(*times)) (*Door, string) {
	t.Helper()
	d := New(b, o)
	for _, f := range change {
		f(&d.times)
	}
	done := make(chan error, 1)
	go func() { done <- d.Serve(l, nil) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), testutil.Patience())
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
	d := websocket.Dialer{EnableCompression: compressed, WriteBufferSize: 64 << 10, HandshakeTimeout: testutil.Patience()}
	ws, resp, err := d.Dial("ws://"+addr+"/rpc/ws", headers(append([]string{instanceHeader, "i"}, kv...)...))
	if err != nil {
		t.Fatalf("dial: %v, %v", err, resp)
	}
	t.Cleanup(func() { ws.Close() })
	return ws
}

// answer is a reply as clients parse it.
type answer struct {
	Seq         json.RawMessage `json:"seq_id"`
	Code        int
	Message     string
	Data        json.RawMessage
	ChunkStatus string `json:"chunk_status"`
}

func recv(t *testing.T, ws *websocket.Conn) answer {
	t.Helper()
	ws.SetReadDeadline(time.Now().Add(testutil.Patience()))
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

// request returns a message that requests an action.
func request(seq int, action string) string {
	return fmt.Sprintf(`{"seq_id": %d, "action": %q, "data": {}}`, seq, action)
}

// closing reads until the close frame and returns its code and reason.
func closing(t *testing.T, ws *websocket.Conn) (int, string) {
	t.Helper()
	ws.SetReadDeadline(time.Now().Add(testutil.Patience()))
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

// dialIdle connects and sends nothing.
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
