package mcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/internal/rpcline"
	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"
)

// StdioOptions of [ServeStdio].
type StdioOptions struct {
	Options
	// Client talks to the daemon with the rights of the user, and is not closed.
	Client *client.Client
	// Actor names the caller. Key distinguishes callers who share a tenant.
	Actor, Key string
	// In and Out carry the messages, a line each. They are closed.
	In  io.ReadCloser
	Out io.WriteCloser
}

// ServeStdio serves the protocol on In and Out until In ends or ctx does. It fails if the daemon cannot be
// reached at first. Calls in progress then end with their commands.
func ServeStdio(ctx context.Context, o StdioOptions) error {
	profile, err := profileOf(ctx, o.Client, o.Profile)
	if err != nil {
		return err
	}
	who := caller{client: o.Client, actor: o.Actor, key: o.Key, close: func() {}}
	server := newServer(o.Options, profile, func(*sdk.RequestExtra) (caller, error) { return who, nil })
	err = server.Run(ctx, &lineTransport{in: o.In, out: o.Out})
	if ctx.Err() != nil || errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// lineTransport carries messages, a line each. With the SDK's own transports a line that is no message ends the connection,
// with all calls in progress; here it is answered with an error.
type lineTransport struct {
	in  io.ReadCloser
	out io.WriteCloser
}

// Connect implements sdk.Transport.
func (t *lineTransport) Connect(context.Context) (sdk.Connection, error) {
	c := &lineConn{lineTransport: t, w: &rpcline.Writer{W: t.out}, asking: map[jsonrpc.ID]bool{}}
	ctx, stop := context.WithCancel(context.Background()) // Close ends the connection, not the context of Connect
	c.closed, c.stop = ctx.Done(), stop
	c.lines = rpcline.Read(ctx, t.in, maxBody, c.w.Write)
	return c, nil
}

// lineConn is the connection of a lineTransport.
type lineConn struct {
	*lineTransport
	w      *rpcline.Writer
	lines  <-chan []byte
	closed <-chan struct{}
	stop   func()

	mu     sync.Mutex
	asking map[jsonrpc.ID]bool // the requests of the client that were not answered yet

	closing  sync.Once
	closeErr error
}

// Read implements sdk.Connection. It answers lines that are no messages.
func (c *lineConn) Read(ctx context.Context) (jsonrpc.Message, error) {
	for {
		var line []byte
		open := true
		select {
		case line, open = <-c.lines:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-c.closed:
			return nil, io.EOF
		}
		if !open {
			return nil, io.EOF
		}
		m, err := decode(line)
		if err != nil {
			err = c.w.Write(rpcline.Refusal(err))
		} else if twin := c.begin(m); twin == nil {
			return m, nil
		} else {
			err = c.write(twin)
		}
		if err != nil {
			return nil, err
		}
	}
}

// decode reads a message, or says why it is none.
func decode(line []byte) (jsonrpc.Message, error) {
	if _, err := rpcline.Parse(line); err != nil { // the SDK accepts some messages that are none
		return nil, err
	}
	return jsonrpc.DecodeMessage(line)
}

// begin notes a request. If one with its ID is in progress, begin returns the answer to m instead: the SDK
// would give none.
func (c *lineConn) begin(m jsonrpc.Message) jsonrpc.Message {
	r, ok := m.(*jsonrpc.Request)
	if !ok || !r.IsCall() {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.asking[r.ID] {
		return &jsonrpc.Response{ID: r.ID, Error: &jsonrpc.Error{Code: -32600, Message: fmt.Sprintf("id %v is that of a request in progress: use each id once", r.ID.Raw())}}
	}
	c.asking[r.ID] = true
	return nil
}

// Write implements sdk.Connection.
func (c *lineConn) Write(ctx context.Context, m jsonrpc.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if r, ok := m.(*jsonrpc.Response); ok {
		c.mu.Lock()
		delete(c.asking, r.ID)
		c.mu.Unlock()
	}
	return c.write(m)
}

func (c *lineConn) write(m jsonrpc.Message) error {
	b, err := jsonrpc.EncodeMessage(m)
	if err != nil {
		return err
	}
	return c.w.Write(b)
}

// Close implements sdk.Connection.
func (c *lineConn) Close() error {
	c.closing.Do(func() {
		c.stop()
		c.closeErr = errors.Join(c.in.Close(), c.out.Close())
	})
	return c.closeErr
}

// SessionID implements sdk.Connection.
func (c *lineConn) SessionID() string { return "" }
