package bridge

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"path"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/internal/linux"
)

const (
	instanceHeader = "X-Langbot-Instance-Id"
	tokenHeader    = "X-Langbot-Box-Control-Token"
)

// passed are the headers of a client that are forwarded to the daemon, besides those that
// begin with X-LangBot- or Sec-WebSocket-. The daemon's socket trusts its users, so no other
// header of the daemon's API may be forwarded.
var passed = map[string]bool{"Connection": true, "Upgrade": true, "Origin": true, "Accept": true, "User-Agent": true}

// serveRelays forwards connections of the listener to the daemon: relays of our instance,
// and probes. stop ends them and waits until they have ended.
func serveRelays(o *Options) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	transport := &http.Transport{
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return o.Dial(ctx) },
		DisableKeepAlives: true,
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:   rewrite,
		Transport: transport,
		ErrorLog:  log.New(io.Discard, "", 0),
		ErrorHandler: func(w http.ResponseWriter, _ *http.Request, err error) {
			answer(w, http.StatusBadGateway, "502: the daemon does not answer")
		},
	}
	var requests sync.WaitGroup
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			requests.Add(1)
			defer requests.Done()
			if o.admit(w, r) {
				proxy.ServeHTTP(w, r)
			}
		}),
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute,
		ErrorLog: log.New(io.Discard, "", 0),
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err := server.Serve(listener{o.Listener}); err != http.ErrServerClosed {
			o.Warn("serving relays: %v", err)
		}
	}()
	return func() {
		server.Close()
		<-served
		cancel() // ends the connections that were upgraded
		requests.Wait()
	}
}

// listener hides that its connections can be half-closed: the proxy would keep waiting for a
// client whose relay has ended.
type listener struct{ net.Listener }

// conn is a connection and the user of this host who opened the client's socket.
type conn struct {
	net.Conn
	uid int
	err error // why uid is not known
}

func (l listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	known := conn{Conn: c, err: errors.New("the connection is not TCP")}
	if t, ok := c.(*net.TCPConn); ok {
		known.uid, known.err = linux.TCPClientUID(t)
	}
	return known, nil
}

// connKey is the key of a conn in the context of its requests.
type connKey struct{}

// admitUser returns why a client may not connect without a token. Only root and the owner of
// the sessions may.
func admitUser(ctx context.Context) error {
	const remedy = "set LANGBOT_BOX_CONTROL_TOKEN"
	c, _ := ctx.Value(connKey{}).(conn)
	switch {
	case c.err != nil:
		return fmt.Errorf("langbot --stdio: the user who connects is unknown: %w: %s", c.err, remedy)
	case c.Conn == nil || c.uid != 0 && c.uid != os.Getuid():
		return fmt.Errorf("langbot --stdio: user %d may not connect through TCP without a token: %s", c.uid, remedy)
	}
	return nil
}

// admit reports whether a request may be forwarded to the daemon. If not, it answers.
func (o *Options) admit(w http.ResponseWriter, r *http.Request) bool {
	switch p := r.URL.Path; {
	case p == "/healthz", p == "/readyz":
		return true
	case !strings.HasPrefix(p, "/v1/sessions/") || path.Clean(p) != p:
		answer(w, http.StatusNotFound, "404: Not Found")
		return false
	}
	if o.Token == "" {
		if err := admitUser(r.Context()); err != nil {
			answer(w, http.StatusForbidden, err.Error())
			return false
		}
	}
	want, got := sha256.Sum256([]byte(o.Token)), sha256.Sum256([]byte(r.Header.Get(tokenHeader)))
	// Hashes have one length, so the comparison does not reveal the token's length.
	known := o.Token == "" || subtle.ConstantTimeCompare(want[:], got[:]) == 1
	if !known || strings.TrimSpace(r.Header.Get(instanceHeader)) != o.Instance {
		answer(w, http.StatusUnauthorized, "Unauthorized")
		return false
	}
	return true
}

// answer answers with one line, without a newline, as the daemon does.
func answer(w http.ResponseWriter, status int, line string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	io.WriteString(w, line)
}

func rewrite(r *httputil.ProxyRequest) {
	u := r.Out.URL
	u.Scheme, u.Host = "http", "boxd"
	u.RawPath, u.Path = prefix+r.In.URL.EscapedPath(), prefix+r.In.URL.Path
	r.Out.Host = r.In.Host // the daemon compares Origin with it
	for name := range r.Out.Header {
		if !passed[name] && !strings.HasPrefix(name, "X-Langbot-") && !strings.HasPrefix(name, "Sec-Websocket-") {
			r.Out.Header.Del(name)
		}
	}
	r.Out.Header.Del(tokenHeader) // it was meant for the bridge
}
