package api

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/relay"
	"github.com/boxd/boxd/session"
)

// Options of a [Server]. Sessions is needed.
type Options struct {
	Sessions *session.Manager
	// Auth says who may ask.
	Auth Auth
	// Version of the daemon, for status.
	Version string
	// Logger; nil is slog.Default.
	Logger *slog.Logger
	// Health is nil if the engine could make a box now; nil: not asked.
	Health func(ctx context.Context) error
	// Warnings name settings that the operator of the daemon should change.
	Warnings []string
	// Ready is nil if the daemon itself can serve; nil: it can.
	Ready func() error
	// Audit is the log whose head status shows; nil: there is none.
	Audit *audit.Log
	// Metrics, whose ObserveExec is session.Options.Observe; nil: new ones.
	Metrics *Metrics
	// MaxBody bounds the body of a JSON request in bytes; 0 is DefaultMaxBody.
	MaxBody int64
	// MaxFile bounds the content of a file, read or written, in bytes; 0 is
	// DefaultMaxFile.
	MaxFile int64
	// MaxConnections bounds the connections of each listener; 0 is
	// DefaultMaxConnections. Above it those that ask for nothing are cut.
	MaxConnections int
	// MaxRelays bounds open relays; 0 is DefaultMaxRelays.
	MaxRelays int
	// HeaderTimeout is how long the header of a request may take to arrive; 0 is
	// 5 s. IdleTimeout is how long an idle connection is kept; 0 is 120 s.
	HeaderTimeout, IdleTimeout time.Duration
	// Relay are the bounds of relays; Counters, Logger and Refuse are filled in.
	Relay relay.Options
	// Others are doors of other protocols on the same listeners.
	Others []Other
}

// Defaults of [Options].
const (
	DefaultMaxBody        = 1 << 20
	DefaultMaxFile        = 1 << 30
	DefaultMaxConnections = 4096
	DefaultMaxRelays      = 4096
)

// maxHeader bounds the header of a request.
const maxHeader = 64 << 10

// Server serves the API. It is safe for concurrent use.
type Server struct {
	opt     Options
	log     *slog.Logger
	metrics *Metrics
	mux     *http.ServeMux
	started time.Time
	openapi func() []byte
	hubs    *hubTable
	relays  chan struct{} // a place for each open relay
	// What one tenant may have of the requests under way and of the relays.
	requestShare, relayShare *share

	base    context.Context // of all requests
	cancel  context.CancelFunc
	streams context.Context // ends when streams without an end shall
	stop    context.CancelFunc

	mu      sync.Mutex
	servers []*http.Server
}

// New returns a server that serves nothing yet.
func New(o Options) *Server {
	o.MaxBody = cmp.Or(o.MaxBody, DefaultMaxBody)
	o.MaxFile = cmp.Or(o.MaxFile, DefaultMaxFile)
	o.MaxConnections = cmp.Or(o.MaxConnections, DefaultMaxConnections)
	o.MaxRelays = cmp.Or(o.MaxRelays, DefaultMaxRelays)
	o.HeaderTimeout = cmp.Or(o.HeaderTimeout, 5*time.Second)
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 120*time.Second)
	o.Logger = cmp.Or(o.Logger, slog.Default())
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	s := &Server{
		opt: o, log: o.Logger, metrics: o.Metrics, started: time.Now(),
		relays:       make(chan struct{}, o.MaxRelays),
		requestShare: newShare(o.MaxConnections), relayShare: newShare(o.MaxRelays),
	}
	o.Relay.Counters, o.Relay.Logger, o.Relay.Refuse = &o.Metrics.relay, o.Logger, refuseRelay
	s.hubs = newHubTable(o.Relay)
	s.base, s.cancel = context.WithCancel(context.Background())
	s.streams, s.stop = context.WithCancel(context.Background())
	s.metrics.bind(s)
	s.openapi = sync.OnceValue(Document)
	s.mux = newMux()
	return s
}

// Handler serves requests whose connections somebody else accepts. Callers are
// known by their Unix sockets only through [Server.Serve].
func (s *Server) Handler() http.Handler { return s }

// Serve accepts connections of l until Shutdown, and closes l. With config it
// speaks TLS. It returns nil after Shutdown.
func (s *Server) Serve(l net.Listener, config *tls.Config) error {
	srv, err := s.newHTTP(config)
	if err != nil {
		return l.Close()
	}
	if config != nil {
		err = srv.ServeTLS(l, "", "")
	} else {
		err = srv.Serve(l)
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

func (s *Server) newHTTP(config *tls.Config) (*http.Server, error) {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // a WebSocket is an HTTP/1.1 connection that was taken over
	conns := newConnTable(s.opt.MaxConnections)
	srv := &http.Server{
		Handler:           s,
		TLSConfig:         config,
		ReadHeaderTimeout: s.opt.HeaderTimeout,
		IdleTimeout:       s.opt.IdleTimeout,
		MaxHeaderBytes:    maxHeader,
		Protocols:         protocols,
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
		BaseContext:       func(net.Listener) context.Context { return s.base },
		ConnContext:       s.opt.Auth.connContext,
		ConnState:         conns.changed,
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams.Err() != nil {
		return nil, http.ErrServerClosed
	}
	s.servers = append(s.servers, srv)
	return srv, nil
}

// Shutdown accepts nothing any more and waits until the requests under way have
// been answered or ctx ends; then they are cancelled, and waited for again. Streams
// without an end are ended at once, relays with the word to come again.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	s.stop()
	servers := s.servers
	s.mu.Unlock()
	var wg sync.WaitGroup
	errs := make([]error, len(servers)+1)
	for i, srv := range servers {
		wg.Go(func() { errs[i] = drain(ctx, srv, s.cancel) })
	}
	wg.Go(s.hubs.close)
	wg.Wait()
	s.cancel()
	return errors.Join(errs...)
}

// lastWait is how long cancelled requests may take to notice.
const lastWait = 5 * time.Second

func drain(ctx context.Context, srv *http.Server, cancel context.CancelFunc) error {
	err := srv.Shutdown(ctx)
	if err == nil || ctx.Err() == nil {
		return err
	}
	cancel()
	last, done := context.WithTimeout(context.WithoutCancel(ctx), lastWait)
	defer done()
	if err := srv.Shutdown(last); err != nil {
		return errors.Join(err, srv.Close())
	}
	return nil
}
