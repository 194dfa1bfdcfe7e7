package preview

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"net/http/httputil"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Defaults of [Options], and bounds that have no option.
const (
	// DefaultPatience covers the start of servers for development, which is 1 to 5 s.
	DefaultPatience = 10 * time.Second
	// DefaultIdle is above the pings of WebSockets and event streams (15 to 60 s in
	// frameworks) and above the compiling of a first page.
	DefaultIdle = 15 * time.Minute
	// DefaultStall is nginx's send_timeout and client_body_timeout.
	DefaultStall = time.Minute
	// DefaultMaxPerSession is what two browsers ask for at the same time at most: 128
	// streams of HTTP/2 each is what they assume a server allows.
	DefaultMaxPerSession = 256

	// keepAlive is below the 5 s of Node and uvicorn, after which they close a connection:
	// a request that is sent at that moment would fail.
	keepAlive       = 4 * time.Second
	maxIdle         = 512      // connections to all boxes
	maxIdlePerPort  = 32       // connections
	maxAnswerHeader = 64 << 10 // bytes; as the API's bound of requests
	minBody         = 1 << 10  // bytes of a request body that have to arrive in Options.Stall
	copyBuffer      = 64 << 10
)

// Options of a [Proxy]. Dial is required.
type Options struct {
	// Dial connects to a port. syscall.ECONNREFUSED means that nothing listens there; after
	// any other error the session counts as not running.
	Dial func(context.Context, Target) (net.Conn, error)
	// Changed returns a channel that is closed when the open ports of the session change
	// next, as far as that is noticed; nil, or a nil channel: it is not. The proxy polls in any case.
	Changed func(Target) <-chan struct{}
	// OwnAuthorization reports whether the Authorization of a request is meant for boxd and
	// not for the server in the box; nil: it always is. In path mode it always is.
	OwnAuthorization func(*http.Request) bool
	// DropHeaders are names, in lower case, of further headers that the box does not get.
	DropHeaders []string
	// Patience is how long a request waits for its port to open, and how long Dial may take;
	// 0: DefaultPatience.
	Patience time.Duration
	// Idle ends a connection to a box on which no byte moves; 0: DefaultIdle.
	Idle time.Duration
	// Stall is how long a client may take for 64 KiB of an answer, or for 1 KiB of its
	// request body; 0: DefaultStall.
	Stall time.Duration
	// MaxPerSession bounds the requests, WebSockets and tunnels of a session; 0:
	// DefaultMaxPerSession.
	MaxPerSession int
	// Counters, if not nil, counts. Several proxies may share one.
	Counters *Counters
	// Logger gets the causes that clients are not told; nil: slog.Default.
	Logger *slog.Logger
}

// Counters count the requests, WebSockets and tunnels of all proxies that share them. Each counts under one
// outcome when it ends; a redirect to the path with a slash does not count.
type Counters struct {
	Answered  atomic.Int64 // the server in the box answered, with any status, or the tunnel was connected to it
	Refused   atomic.Int64 // before the box was asked
	Failed    atomic.Int64 // nothing listened, there was no valid answer, or the client's body was broken
	Abandoned atomic.Int64 // the client left before there was an answer
	Open      atomic.Int64 // requests, WebSockets and tunnels that have not ended
	In, Out   atomic.Int64 // bytes that boxes received and sent, with their HTTP headers
}

// Proxy serves ports of boxes. It is safe for concurrent use.
type Proxy struct {
	o         Options
	transport *http.Transport
	reverse   *httputil.ReverseProxy
	pool      pool
}

// New returns a proxy. The caller closes it.
func New(o Options) *Proxy {
	o.Patience = cmp.Or(o.Patience, DefaultPatience)
	o.Idle = cmp.Or(o.Idle, DefaultIdle)
	o.Stall = cmp.Or(o.Stall, DefaultStall)
	o.MaxPerSession = cmp.Or(o.MaxPerSession, DefaultMaxPerSession)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Counters == nil {
		o.Counters = new(Counters)
	}
	p := &Proxy{o: o, pool: pool{counters: o.Counters, idle: o.Idle, most: o.MaxPerSession, entries: map[[2]string]*entry{}}}
	p.transport = &http.Transport{
		DialContext:            p.dial,
		DisableCompression:     true, // the client's Accept-Encoding goes to the box
		MaxIdleConns:           maxIdle,
		MaxIdleConnsPerHost:    maxIdlePerPort,
		MaxConnsPerHost:        o.MaxPerSession, // with those that are dialled for requests that have ended
		IdleConnTimeout:        keepAlive,
		ExpectContinueTimeout:  time.Second,
		MaxResponseHeaderBytes: maxAnswerHeader,
		ReadBufferSize:         16 << 10,
		WriteBufferSize:        16 << 10,
	}
	p.reverse = &httputil.ReverseProxy{
		Rewrite:        p.rewrite,
		Transport:      roundTripper{p},
		ModifyResponse: p.modify,
		ErrorHandler:   p.failed,
		FlushInterval:  10 * time.Millisecond, // event streams and bodies of unknown length: at once
		ErrorLog:       log.New(io.Discard, "", 0),
		BufferPool:     &buffers,
	}
	return p
}

// Close ends all requests and tunnels, and refuses new ones. It does not wait for them.
func (p *Proxy) Close() {
	p.pool.close()
	p.transport.CloseIdleConnections()
}

// Forget closes every connection to a session, and ends its requests and tunnels. Call it
// when the box of the session ends: another box may get the same name.
func (p *Proxy) Forget(tenant, session string) { p.pool.forget(tenant, session) }

type exchangeKey struct{}

// exchange is one request and its answer.
type exchange struct {
	visit  Visit
	origin string
	entry  *entry
	own    http.Header // clientWriter.own: no header or trailer of the box has these names
	// outcome is one of the Counters.
	outcome *atomic.Int64
}

// ServeHTTP proxies a request. The caller has decided that the client may have the port.
func (p *Proxy) ServeHTTP(w http.ResponseWriter, r *http.Request, v Visit) {
	escaped := r.URL.EscapedPath()
	switch {
	case r.Method == http.MethodConnect || checkPort(v.Target.Port) != nil:
		p.refuse(w, r, http.StatusBadRequest, "Not a request for a port", "The method must not be CONNECT, and the port must be 1 to 65535.")
		return
	case v.Prefix != "" && escaped == v.Prefix: // relative links need the slash
		w.Header().Set("Location", v.origin(r)+v.Prefix+"/"+withMark("?", r.URL.RawQuery))
		w.WriteHeader(http.StatusPermanentRedirect)
		return
	case v.trim(escaped) == "":
		p.refuse(w, r, http.StatusNotFound, "Not a path of a port", "The path must begin with “"+v.Prefix+"/”.")
		return
	}
	// A service worker would stay in the browser, and would see the pages and the links of the next
	// session with this name.
	if r.Header.Get("Service-Worker") != "" {
		p.refuse(w, r, http.StatusForbidden, "No service workers", "Previews cannot install service workers.")
		return
	}
	e := p.acquire(w, r, v.Target)
	if e == nil {
		return
	}
	defer p.pool.release(e)
	cw := newClientWriter(w, p.o.Stall)
	defer cw.finish()
	defer context.AfterFunc(r.Context(), cw.cut)()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)()
	x := &exchange{visit: v, origin: v.origin(r), entry: e, own: cw.own, outcome: &p.o.Counters.Abandoned}
	defer func() { x.outcome.Add(1) }()
	r = r.WithContext(context.WithValue(ctx, exchangeKey{}, x))
	if r.Body != nil && r.Body != http.NoBody {
		b := &clientBody{ReadCloser: r.Body, rc: cw.rc, stall: p.o.Stall}
		r.Body = b
		defer b.finish()
	}
	p.reverse.ServeHTTP(cw, r)
}

// refuse answers a request that is not meant for the box.
func (p *Proxy) refuse(w http.ResponseWriter, r *http.Request, status int, title, text string) {
	p.o.Counters.Refused.Add(1)
	WritePage(w, r, status, title, text)
}

// acquire counts a request against its session, or answers it.
func (p *Proxy) acquire(w http.ResponseWriter, r *http.Request, t Target) *entry {
	e, err := p.pool.acquire(t)
	if err == nil {
		return e
	}
	if errors.Is(err, errFull) {
		p.refuse(w, r, http.StatusServiceUnavailable, "Too many requests", "The session has as many open requests as it may have. Close some, then retry.")
	} else {
		p.refuse(w, r, http.StatusServiceUnavailable, "boxd is stopping", "Retry.")
	}
	return nil
}

// dialError is a failure before anything was sent.
type dialError struct{ error }

func (e *dialError) Unwrap() error { return e.error }

func isRefused(err error) bool {
	_, isDial := errors.AsType[*dialError](err)
	return isDial && errors.Is(err, syscall.ECONNREFUSED)
}

// dial is the transport's, which does not cancel it with the request: another request of
// the same entry and port may get the connection. It ends with the entry.
func (p *Proxy) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	x := ctx.Value(exchangeKey{}).(*exchange)
	ctx, cancel := context.WithTimeout(ctx, p.o.Patience)
	defer cancel()
	defer context.AfterFunc(x.entry.ctx, cancel)()
	c, err := p.o.Dial(ctx, x.visit.Target)
	if err != nil {
		return nil, &dialError{err}
	}
	bc, err := p.pool.add(x.entry, c)
	if err != nil {
		return nil, &dialError{err}
	}
	return bc, nil
}

// roundTripper waits for ports to open.
type roundTripper struct{ p *Proxy }

// RoundTrip repeats a request only if no connection could be made, so nothing was sent.
// For requests that fail on a kept connection, the transport knows which it may repeat.
func (t roundTripper) RoundTrip(r *http.Request) (*http.Response, error) {
	p, target := t.p, r.Context().Value(exchangeKey{}).(*exchange).visit.Target
	deadline := time.NewTimer(p.o.Patience)
	defer deadline.Stop()
	pause := 50 * time.Millisecond
	for first := true; ; first = false {
		var changed <-chan struct{}
		if !first && p.o.Changed != nil {
			changed = p.o.Changed(target)
		}
		again := r.WithContext(r.Context())
		if r.Body != nil && r.Body != http.NoBody {
			again.Body = io.NopCloser(r.Body) // the transport closes it when it cannot connect
		}
		res, err := p.transport.RoundTrip(again)
		if !isRefused(err) {
			return res, err
		}
		poll := time.NewTimer(pause)
		select {
		case <-changed:
		case <-poll.C:
			pause = min(2*pause, 500*time.Millisecond)
		case <-deadline.C:
			poll.Stop()
			return nil, err
		case <-r.Context().Done():
			poll.Stop()
			return nil, context.Cause(r.Context())
		}
		poll.Stop()
	}
}

// failed answers a request for which the box gave no answer.
func (p *Proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	x := r.Context().Value(exchangeKey{}).(*exchange)
	p.o.Logger.Debug("preview failed", "tenant", x.visit.Target.Tenant, "session", x.visit.Target.Session, "port", x.visit.Target.Port, "err", err)
	if x.entry.ctx.Err() == nil && r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client is gone
	}
	x.outcome = &p.o.Counters.Failed
	p.explain(w, r, x.visit.Target, x.entry, err)
}

// explain tells the client why its request failed, without addresses.
func (p *Proxy) explain(w http.ResponseWriter, r *http.Request, t Target, e *entry, err error) {
	_, isDial := errors.AsType[*dialError](err)
	switch {
	case errors.Is(err, errSlow):
		WritePage(w, r, http.StatusRequestTimeout, "Your request is too slow", "Its body did not arrive in time.")
	case errors.Is(err, errBody):
		WritePage(w, r, http.StatusBadRequest, "Your request is broken", "Its body ended early, or is not encoded as announced.")
	case errors.Is(err, errIdle) || errors.Is(err, context.DeadlineExceeded):
		WritePage(w, r, http.StatusGatewayTimeout, "No answer", "The server in the box listens, but does not answer. See its output.")
	case isRefused(err):
		WritePage(w, r, http.StatusBadGateway, fmt.Sprintf("Nothing listens on port %d", t.Port),
			fmt.Sprintf("Start a server in session “%s” that listens on 127.0.0.1:%d. If there is one, its output says which port it uses.", t.Session, t.Port))
	case e.ctx.Err() != nil || isDial:
		WritePage(w, r, http.StatusBadGateway, "The session is not running", "boxd cannot reach its box. Start it again, then reload.")
	default:
		WritePage(w, r, http.StatusBadGateway, "No valid answer", "The server in the box closed the connection, or does not speak HTTP on this port. See its output.")
	}
}

// boxBody is the body of an answer. The trailers are known once it has been read.
type boxBody struct {
	io.ReadCloser
	x   *exchange
	res *http.Response
}

func (b *boxBody) Close() error {
	err := b.ReadCloser.Close()
	b.x.dropPrivate(b.res.Trailer)
	b.res.Trailer.Del("Set-Cookie")
	return err
}

// bufferPool are the buffers of bodies on their way to clients.
type bufferPool struct{ sync.Pool }

var buffers = bufferPool{sync.Pool{New: func() any { return new([copyBuffer]byte) }}}

func (b *bufferPool) Get() []byte  { return b.Pool.Get().(*[copyBuffer]byte)[:] }
func (b *bufferPool) Put(p []byte) { b.Pool.Put((*[copyBuffer]byte)(p)) }
