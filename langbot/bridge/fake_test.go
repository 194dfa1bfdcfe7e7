package bridge

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/gorilla/websocket"
)

// daemon is a daemon's socket whose answers a test decides.
type daemon struct {
	t      *testing.T
	socket string
	http   *httptest.Server
	// reply returns the answer to a request; nil means none.
	reply func(r request) [][]byte

	mu       sync.Mutex
	requests []request
	headers  []http.Header // of requests other than /langbot/rpc/ws
	paths    []string
	ws       *websocket.Conn
}

// request is a message as the daemon parses it.
type request struct {
	Seq    json.RawMessage `json:"seq_id"`
	Action string          `json:"action"`
	Data   json.RawMessage `json:"data"`
	raw    []byte
}

func (r request) success() []byte {
	return fmt.Appendf(nil, `{"seq_id":%s,"code":0,"message":"success","data":{}}`, r.Seq)
}

func newDaemon(t *testing.T) *daemon {
	d := &daemon{t: t, socket: filepath.Join(t.TempDir(), "s"), reply: func(r request) [][]byte { return [][]byte{r.success()} }}
	l, err := net.Listen("unix", d.socket)
	if err != nil {
		t.Fatal(err)
	}
	d.http = httptest.NewUnstartedServer(d)
	d.http.Listener.Close()
	d.http.Listener = l
	d.http.Start()
	t.Cleanup(d.http.Close)
	return d
}

func (d *daemon) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Path == "/langbot/rpc/ws":
		if got := r.Header.Get("X-LangBot-Instance-Id"); got != "inst" {
			http.Error(w, "Unauthorized: "+got, http.StatusUnauthorized)
			return
		}
		d.serveActions(w, r)
	case strings.HasSuffix(r.URL.Path, "/ws"):
		d.note(r)
		d.serveRelay(w, r)
	default:
		d.note(r)
		io.WriteString(w, "answer to "+r.URL.EscapedPath())
	}
}

func (d *daemon) note(r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.headers, d.paths = append(d.headers, r.Header), append(d.paths, r.URL.EscapedPath())
}

func (d *daemon) serveActions(w http.ResponseWriter, r *http.Request) {
	ws, err := (&websocket.Upgrader{}).Upgrade(w, r, nil)
	if err != nil {
		d.t.Error(err)
		return
	}
	defer ws.Close()
	d.mu.Lock()
	d.ws = ws
	d.mu.Unlock()
	for {
		kind, msg, err := ws.ReadMessage()
		if err != nil {
			return
		}
		req := request{raw: msg}
		if err := json.Unmarshal(msg, &req); kind != websocket.TextMessage || err != nil {
			d.t.Errorf("the daemon got a message of kind %d, %v", kind, err)
		}
		d.mu.Lock()
		d.requests = append(d.requests, req)
		reply := d.reply
		d.mu.Unlock()
		for _, msg := range reply(req) {
			ws.WriteMessage(websocket.TextMessage, msg)
		}
	}
}

// serveRelay sends each message back, up to "bye".
func (d *daemon) serveRelay(w http.ResponseWriter, r *http.Request) {
	ws, err := (&websocket.Upgrader{Subprotocols: []string{"mcp"}}).Upgrade(w, r, nil)
	if err != nil {
		return
	}
	defer ws.Close()
	for {
		kind, msg, err := ws.ReadMessage()
		if err != nil || string(msg) == "bye" {
			return
		}
		ws.WriteMessage(kind, msg)
	}
}

func (d *daemon) dial(ctx context.Context) (net.Conn, error) {
	var dialer net.Dialer
	return dialer.DialContext(ctx, "unix", d.socket)
}

// seen lists the actions that were requested.
func (d *daemon) seen() (actions []string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, r := range d.requests {
		actions = append(actions, r.Action)
	}
	return actions
}

// run is a running bridge, and its parent.
type run struct {
	t        *testing.T
	in       *io.PipeWriter
	messages chan []byte // of stdout, until it is closed
	warnings chan string
	ended    chan error
	cancel   context.CancelFunc
}

// start runs a bridge to d.
func start(t *testing.T, d *daemon, change func(o *Options)) *run {
	inR, inW := io.Pipe()
	outR, outW := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	r := &run{t: t, in: inW, messages: make(chan []byte, 100), warnings: make(chan string, 100), ended: make(chan error, 1), cancel: cancel}
	o := Options{In: inR, Out: outW, Dial: d.dial, Instance: "inst", Warn: func(format string, args ...any) { r.warnings <- fmt.Sprintf(format, args...) }}
	if change != nil {
		change(&o)
	}
	go func() {
		err := Run(ctx, o)
		outW.Close()
		r.ended <- err
	}()
	go func() {
		defer close(r.messages)
		lines := protocol.NewLineReader(outR)
		for {
			msg, err := lines.Next()
			if err != nil {
				return
			}
			r.messages <- msg
		}
	}()
	t.Cleanup(func() { inW.Close(); outR.Close(); cancel() })
	return r
}

func (r *run) send(msg string) {
	r.t.Helper()
	if err := protocol.WriteMessage(r.in, []byte(msg)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *run) next() string {
	r.t.Helper()
	select {
	case msg, ok := <-r.messages:
		if !ok {
			r.t.Fatal("stdout has ended")
		}
		return string(msg)
	case <-time.After(testutil.Patience()):
		r.t.Fatal("no message")
	}
	return ""
}

// end returns the result of the bridge.
func (r *run) end() error {
	r.t.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(testutil.Patience()):
		r.t.Fatal("the bridge does not end")
	}
	return nil
}
