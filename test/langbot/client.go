package langbot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/gorilla/websocket"
)

// Context says for which instance and workspace an action is done.
type Context struct {
	Instance   string `json:"instance_uuid"`
	Workspace  string `json:"workspace_uuid"`
	Generation int64  `json:"placement_generation"`
}

// Headers returns the headers for a relay of c.
func (c Context) Headers() http.Header {
	h := http.Header{}
	h.Set("X-LangBot-Instance-Id", c.Instance)
	h.Set("X-LangBot-Workspace-Id", c.Workspace)
	h.Set("X-LangBot-Placement-Generation", fmt.Sprint(c.Generation))
	return h
}

// Dialer connects to the door whose URLs begin with Base, such as "ws://127.0.0.1:5410".
type Dialer struct {
	Base  string
	Token string
	// NetDial makes connections; nil is TCP.
	NetDial func(ctx context.Context, network, addr string) (net.Conn, error)
	// Deflate offers compression, as LangBot's client does.
	Deflate bool
}

func (d Dialer) dial(ctx context.Context, path string, h http.Header, protocols ...string) (*websocket.Conn, *http.Response, error) {
	if d.Token != "" {
		h.Set("X-LangBot-Box-Control-Token", d.Token)
	}
	ws := websocket.Dialer{NetDialContext: d.NetDial, EnableCompression: d.Deflate, Subprotocols: protocols, WriteBufferSize: fragment}
	return ws.DialContext(ctx, d.Base+path, h)
}

// Client is one RPC connection. It is safe for concurrent use.
type Client struct {
	ws      *websocket.Conn
	writing sync.Mutex
	seq     atomic.Int64

	mu      sync.Mutex
	waiting map[int64]chan Reply
	lost    error
	done    chan struct{}
}

// Reply is the answer to an action.
type Reply struct {
	Seq     int64           `json:"seq_id"`
	Code    int             `json:"code"`
	Message string          `json:"message"`
	Data    json.RawMessage `json:"data"`
	Status  string          `json:"chunk_status"`
}

// RemoteError is the answer to an action that failed.
type RemoteError struct{ Message string }

func (e *RemoteError) Error() string { return e.Message }

// classes in the order in which LangBot's client looks for them, anywhere in a message.
var classes = []string{
	"BoxAdmissionError", "BoxReadinessError", "BoxCapacityExceededError", "BoxValidationError", "BoxSessionNotFoundError",
	"BoxSessionConflictError", "BoxManagedProcessNotFoundError", "BoxManagedProcessConflictError", "BoxBackendUnavailableError",
}

// Class is the error that LangBot's client would raise.
func (e *RemoteError) Class() string {
	for _, c := range classes {
		if strings.Contains(e.Message, c+":") {
			return c
		}
	}
	return "BoxError"
}

// Dial opens an RPC connection of instance.
func (d Dialer) Dial(ctx context.Context, instance string) (*Client, error) {
	h := http.Header{}
	h.Set("X-LangBot-Instance-Id", instance)
	ws, answer, err := d.dial(ctx, "/rpc/ws", h)
	if err != nil {
		return nil, refusal(answer, err)
	}
	ws.SetReadLimit(16 << 20)
	c := &Client{ws: ws, waiting: map[int64]chan Reply{}, done: make(chan struct{})}
	c.seq.Store(67840)
	go c.receive()
	return c, nil
}

// StatusError is the refusal of an upgrade.
type StatusError struct {
	Status int
	Body   string
}

func (e *StatusError) Error() string { return fmt.Sprintf("status %d: %s", e.Status, e.Body) }

func refusal(answer *http.Response, err error) error {
	if answer == nil {
		return err
	}
	body := make([]byte, 1024)
	n, _ := answer.Body.Read(body)
	answer.Body.Close()
	return &StatusError{answer.StatusCode, string(body[:n])}
}

// Relay attaches to a managed process by the physical ID of its session.
func (d Dialer) Relay(ctx context.Context, h http.Header, physical, process string) (*websocket.Conn, error) {
	ws, answer, err := d.dial(ctx, "/v1/sessions/"+physical+"/managed-process/"+process+"/ws", h, "mcp")
	if err != nil {
		return nil, refusal(answer, err)
	}
	ws.SetReadLimit(1 << 20) // the limit of LangBot's MCP client
	return ws, nil
}

// receive delivers answers until the connection ends.
func (c *Client) receive() {
	defer close(c.done)
	for {
		_, message, err := c.ws.ReadMessage()
		if err != nil {
			c.fail(err)
			return
		}
		var r Reply
		if err := json.Unmarshal(message, &r); err != nil {
			c.fail(fmt.Errorf("answer %.100q: %w", message, err))
			return
		}
		c.mu.Lock()
		waiter := c.waiting[r.Seq]
		delete(c.waiting, r.Seq)
		c.mu.Unlock()
		if waiter != nil {
			waiter <- r
		}
	}
}

func (c *Client) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = err
	for seq, waiter := range c.waiting {
		close(waiter)
		delete(c.waiting, seq)
	}
}

// errLost means that the connection ended before the answer.
var errLost = errors.New("connection lost")

// Call does one action and decodes its answer into out, which may be nil.
func (c *Client) Call(ctx context.Context, at *Context, action string, data, out any) error {
	r, err := c.Ask(ctx, at, action, data)
	if err != nil {
		return err
	}
	if r.Code != 0 {
		return &RemoteError{r.Message}
	}
	if out == nil {
		return nil
	}
	return json.Unmarshal(r.Data, out)
}

// Ask does one action and returns the whole answer.
func (c *Client) Ask(ctx context.Context, at *Context, action string, data any) (Reply, error) {
	answer, err := c.Begin(at, action, data)
	if err != nil {
		return Reply{}, err
	}
	select {
	case r, ok := <-answer:
		if !ok {
			return Reply{}, fmt.Errorf("%s: %w: %w", action, errLost, c.lost)
		}
		return r, nil
	case <-ctx.Done():
		return Reply{}, fmt.Errorf("%s: no answer: %w", action, ctx.Err())
	}
}

// Begin requests an action. The channel delivers the answer; it is closed when the
// connection is lost.
func (c *Client) Begin(at *Context, action string, data any) (<-chan Reply, error) {
	seq := c.seq.Add(1)
	request := map[string]any{"seq_id": seq, "action": action, "data": data}
	if at != nil {
		request["context"] = at
	}
	message, err := json.Marshal(request)
	if err != nil {
		return nil, err
	}
	answer := make(chan Reply, 1)
	c.mu.Lock()
	if c.lost != nil {
		defer c.mu.Unlock()
		return nil, fmt.Errorf("%s: %w: %w", action, errLost, c.lost)
	}
	c.waiting[seq] = answer
	c.mu.Unlock()
	return answer, c.Send(message)
}

// fragment is the size above which LangBot's client splits a message into frames.
const fragment = 64 << 10

// Send sends one text message as LangBot's client does: in frames of at most 64 KiB, split
// between characters.
func (c *Client) Send(message []byte) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	if len(message) <= fragment {
		return c.ws.WriteMessage(websocket.TextMessage, message)
	}
	w, err := c.ws.NextWriter(websocket.TextMessage)
	if err != nil {
		return err
	}
	for len(message) > 0 {
		n := min(fragment, len(message))
		for n < len(message) && !utf8.RuneStart(message[n]) {
			n--
		}
		if _, err := w.Write(message[:n]); err != nil {
			return err
		}
		message = message[n:]
	}
	return w.Close()
}

// WebSocket returns the connection itself, for what a good client does not do.
func (c *Client) WebSocket() *websocket.Conn { return c.ws }

// Done returns a channel that is closed when the connection has ended; Err says why.
func (c *Client) Done() <-chan struct{} { return c.done }

// Err returns why the connection ended.
func (c *Client) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// Close ends the connection without a closing handshake.
func (c *Client) Close() error {
	err := c.ws.Close()
	<-c.done
	return err
}
