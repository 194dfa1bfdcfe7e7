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
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

// DialOptions say what to attach to, and how.
type DialOptions struct {
	// URL is that of the relay, with the scheme http, https, ws or wss, and without
	// a query.
	URL string
	// NetDial makes the connection; nil is TCP.
	NetDial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS is for https and wss; nil has the defaults.
	TLS *tls.Config
	// Header is sent with the request, for example Authorization.
	Header http.Header
	// Write asks to be the writer; TakeOver to become it in place of another.
	Write, TakeOver bool
	Since           Since
	// ClientID, 16 to 64 of a-z, A-Z, 0-9, "-" and "_", names the client across its
	// connections: a new one replaces an older one of the same id. It may be empty.
	ClientID string
	// Dead is how long the relay may be silent; zero is 60 s.
	Dead time.Duration
}

// DialError is a refusal of the relay.
type DialError struct {
	Status int    // of the HTTP answer
	Text   string // its body, up to 1 KiB
	// WriterTaken says that there is a writer already.
	WriterTaken bool
}

func (e *DialError) Error() string {
	return fmt.Sprintf("attaching: %d %s: %s", e.Status, http.StatusText(e.Status), e.Text)
}

// Dial connects. Errors: *DialError; ErrProtocol; those of the network.
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

// dialError makes a refusal of an answer that is none to an upgrade.
func dialError(resp *http.Response, err error) error {
	if resp == nil || !errors.Is(err, websocket.ErrBadHandshake) {
		return fmt.Errorf("attaching: %w", err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
	return &DialError{
		Status: resp.StatusCode, Text: strings.TrimSpace(string(body)),
		WriterTaken: resp.Header.Get(writerHeader) != "",
	}
}

// open takes the Hello, and checks that it is what was asked for.
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
			return malformed("%v begins at %d, asked was %d", s, b.Start, at.Offset)
		}
		c.streams[s] = progress{b.Start, b.Start, b.Start}
	}
	c.hello, c.writer = h, h.Writer
	c.sent, c.stdin.Accepted = h.StdinAccepted, h.StdinAccepted
	return nil
}
