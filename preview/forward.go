package preview

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
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/boxd/boxd/internal/wsconn"
)

// maxForwarded bounds the connections of one listener. Further ones wait in its backlog.
const maxForwarded = DefaultMaxPerSession

// TunnelDialer says where a tunnel is, and how to get there.
type TunnelDialer struct {
	// URL is the address of the tunnel: http, https, ws or wss.
	URL string
	// NetDial opens the connection; nil means TCP.
	NetDial func(ctx context.Context, network, addr string) (net.Conn, error)
	// TLS configures https and wss; nil means the defaults.
	TLS *tls.Config
	// Header is sent with the request, for example Authorization.
	Header http.Header
}

// TunnelError is the refusal of a tunnel.
type TunnelError struct {
	Status int    // HTTP status
	Text   string // body of the answer, up to 1 KiB
}

func (e *TunnelError) Error() string {
	return fmt.Sprintf("opening tunnel: %d %s: %s", e.Status, http.StatusText(e.Status), e.Text)
}

// Dial opens a tunnel. ctx bounds the opening only. Errors: *TunnelError, and those of the
// network.
func (d TunnelDialer) Dial(ctx context.Context) (*Tunnel, error) {
	u, err := url.Parse(d.URL)
	if err != nil {
		return nil, fmt.Errorf("opening tunnel: %w", err)
	}
	if s, ok := strings.CutPrefix(u.Scheme, "http"); ok {
		u.Scheme = "ws" + s
	}
	netDial := d.NetDial
	if netDial == nil {
		netDial = new(net.Dialer).DialContext
	}
	t := &Tunnel{}
	dialer := websocket.Dialer{
		NetDialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := netDial(ctx, network, addr)
			if err != nil {
				return nil, err
			}
			t.wire = wsconn.New(c, DefaultIdle)
			return t.wire, nil
		},
		TLSClientConfig:  d.TLS,
		HandshakeTimeout: 30 * time.Second,
		WriteBufferSize:  copyBuffer,
		WriteBufferPool:  &tunnelPool,
	}
	ws, resp, err := dialer.DialContext(ctx, u.String(), d.Header)
	if err != nil {
		if resp == nil || !errors.Is(err, websocket.ErrBadHandshake) {
			return nil, fmt.Errorf("opening tunnel: %w", err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(io.LimitReader(resp.Body, 1024))
		return nil, &TunnelError{resp.StatusCode, strings.TrimSpace(string(body))}
	}
	t.ws = ws
	return t, nil
}

// Forward accepts connections and carries each over a tunnel of its own, which dial opens,
// until ctx ends or accepting fails. It takes the listener. report, which may be called
// concurrently, learns why a connection failed; nil: nothing does.
//
// A connection whose tunnel is refused or fails is reset.
func Forward(ctx context.Context, l net.Listener, dial func(context.Context) (*Tunnel, error), report func(error)) error {
	defer l.Close()
	ctx, cancel := context.WithCancel(ctx)
	defer context.AfterFunc(ctx, func() { l.Close() })()
	slots := make(chan struct{}, maxForwarded)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
		c, err := l.Accept()
		if ctx.Err() != nil {
			if err == nil {
				resetTCP(c)
			}
			return ctx.Err()
		}
		if err != nil {
			return fmt.Errorf("forwarding %q: %w", l.Addr(), err)
		}
		wg.Go(func() {
			defer func() { <-slots }()
			t, err := dial(ctx)
			refused := err != nil
			if !refused {
				err = t.relay(ctx, c, DefaultIdle)
			}
			if err != nil && ctx.Err() == nil && report != nil {
				report(err)
			}
			if refused { // now that the reason is known
				resetTCP(c)
			}
		})
	}
}
