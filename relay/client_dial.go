package relay

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

// DialOptions say what to attach to, and how.
type DialOptions struct {
	// URL is the address of the relay: http, https, ws or wss, without a query.
	URL string
	// NetDial opens the connection; nil means TCP.
	NetDial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS configures https and wss; nil means the defaults.
	TLS *tls.Config
	// Header is sent with the request, for example Authorization.
	Header http.Header
	// Write asks to be the writer. TakeOver, with Write, displaces another writer.
	Write, TakeOver bool
	// Since says where the output starts; the zero value means the oldest bytes kept.
	Since Since
	// ClientID identifies the client across its connections, so that a new connection
	// replaces the old one of the same ID: 16 to 64 of a-z, A-Z, 0-9, "-" and "_".
	// Empty means none.
	ClientID string
	// Dead is how long the relay may be silent; 0 means 60 s.
	Dead time.Duration
}

// DialError is the refusal of a request to attach.
type DialError struct {
	Status int    // HTTP status
	Text   string // body of the answer, up to 1 KiB
	// WriterTaken reports that another client is the writer.
	WriterTaken bool
	// RetryAfter is how long the server asks clients to wait; 0: it did not say.
	RetryAfter time.Duration
}

func (e *DialError) Error() string {
	return fmt.Sprintf("attaching: %d %s: %s", e.Status, http.StatusText(e.Status), e.Text)
}

// Dial connects to a relay. ctx bounds the connecting only. Errors: *DialError,
// ErrProtocol, and those of the network.
func Dial(ctx context.Context, o DialOptions) (*Client, error) {
	u, err := relayURL(o)
	if err != nil {
		return nil, err
	}
	d := websocket.Dialer{
		NetDialContext:  o.NetDial,
		TLSClientConfig: o.TLS,
		ReadBufferSize:  32 << 10,
		WriteBufferSize: maxToServer,
	}
	ws, resp, err := d.DialContext(ctx, u, o.Header)
	if err != nil {
		return nil, dialError(resp, err)
	}
	c := &Client{ws: ws, dead: orDefault(o.Dead, time.Minute), moved: make(chan struct{})}
	stop := context.AfterFunc(ctx, func() { ws.Close() })
	err = c.open(o)
	if !stop() {
		err = context.Cause(ctx)
	}
	if err != nil {
		ws.Close()
		return nil, err
	}
	return c, nil
}

func relayURL(o DialOptions) (string, error) {
	u, err := url.Parse(o.URL)
	if err != nil {
		return "", err
	}
	if s, ok := strings.CutPrefix(u.Scheme, "http"); ok {
		u.Scheme = "ws" + s
	}
	r := request{write: o.Write, takeOver: o.TakeOver, since: o.Since, client: o.ClientID}
	u.RawQuery = r.query().Encode()
	return u.String(), nil
}

// dialError turns an answer that refuses the upgrade into a [*DialError].
func dialError(resp *http.Response, err error) error {
	if resp == nil || !errors.Is(err, websocket.ErrBadHandshake) {
		return fmt.Errorf("attaching: %w", err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
	seconds, _ := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 16) // a date is ignored
	return &DialError{
		RetryAfter: time.Duration(seconds) * time.Second,
		Status:     resp.StatusCode, Text: strings.TrimSpace(string(body)),
		WriterTaken: resp.Header.Get(writerHeader) != "",
	}
}

// open receives the Hello, and checks that it matches the request.
func (c *Client) open(o DialOptions) error {
	c.ws.SetReadLimit(maxToClient)
	c.ws.SetPingHandler(func(data string) error {
		c.alive()
		c.ws.WriteControl(websocket.PongMessage, []byte(data), time.Now().Add(time.Second))
		return nil
	})
	c.alive()
	msg, err := c.message()
	if err != nil {
		return err
	}
	f, err := parseServer(msg)
	h, ok := f.(Hello)
	if err == nil && !ok {
		err = malformed("the first frame is no Hello")
	}
	if err != nil {
		return err
	}
	for s, at := range map[Stream]Position{Stdout: o.Since.Stdout, Stderr: o.Since.Stderr} {
		b := h.Stdout
		if s == Stderr {
			b = h.Stderr
		}
		if s == Stderr && !h.HasStderr {
			continue
		}
		if at.Kind == At && b.Start != at.Offset {
			return malformed("%v starts at %d, want %d", s, b.Start, at.Offset)
		}
		c.streams[s] = progress{b.Start, b.Start, b.Start}
	}
	c.hello, c.writer = h, h.Writer
	c.sent, c.stdin.Accepted = h.StdinAccepted, h.StdinAccepted
	return nil
}
