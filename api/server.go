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

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/images"
	"github.com/boxd/boxd/internal/budget"
	"github.com/boxd/boxd/preview"
	"github.com/boxd/boxd/relay"
	"github.com/boxd/boxd/session"
)

// Options of a [Server]. Sessions is required.
type Options struct {
	Sessions *session.Manager
	// Auth decides who may use the server.
	Auth Auth
	// Version of the daemon, for status.
	Version string
	// Logger; nil is slog.Default.
	Logger *slog.Logger
	// Health reports why the engine cannot create a box now; nil: it is assumed to be able
	// to.
	Health func(ctx context.Context) error
	// Doctor examines the host, as far as the daemon can. Calls may come often, and at once; nil: there is nothing
	// to examine.
	Doctor func(ctx context.Context) (apitypes.Doctor, error)
	// Pool describes the boxes that the engine has built ahead of time; nil: it builds none.
	Pool func(ctx context.Context) (engine.PoolState, error)
	// Langbot reports why LangBot's protocol is not ready; nil: it is not served on an address of its own.
	Langbot func(ctx context.Context) error
	// Warnings returns what the operator of the daemon should change; nil: nothing.
	Warnings func() []string
	// Webhooks returns the state of each receiver of webhooks; nil: there are none.
	Webhooks func() []apitypes.WebhookState
	// Ready reports why the daemon itself cannot serve; nil: it can.
	Ready func() error
	// Audit is the log whose head the status shows; nil: there is none.
	Audit *audit.Log
	// Images is the store of images; nil: the routes of images answer with apitypes.CodeImagesDisabled.
	Images *images.Store
	// AllowImage refuses an image that tenant must not pull or import, images.Shared for a shared one, with an
	// error that says why. reference is full, see spec.Reference. nil: every image is allowed. AllowPull is asked
	// instead for pulls of callers who may not act for all tenants.
	AllowImage, AllowPull func(tenant, reference string) error
	// Metrics is the one whose ObserveExec is session.Options.Observe; nil: a new one.
	Metrics *Metrics
	// MetricLabels are the keys of labels of sessions that metrics tell apart.
	MetricLabels []string
	// MaxBody bounds the body of a JSON request in bytes; 0 is DefaultMaxBody.
	MaxBody int64
	// MaxFile bounds the content of a file, read or written, in bytes; 0 is DefaultMaxFile.
	MaxFile int64
	// MaxTree bounds the content of all files of a directory that is packed, unpacked or copied; 0
	// is DefaultMaxTree.
	MaxTree int64
	// MaxConnections bounds the connections of each listener; 0 is DefaultMaxConnections.
	// Above it, connections without a request are closed.
	MaxConnections int
	// MaxRelays bounds open relays; 0 is DefaultMaxRelays.
	MaxRelays int
	// HeaderTimeout is how long the header of a request may take to arrive; 0 is 5 s.
	// IdleTimeout is how long an idle connection is kept; 0 is 120 s.
	HeaderTimeout, IdleTimeout time.Duration
	// Scope is the template of the ID of sessions that are asked for without ID and scope, if
	// token and profile have none; empty: such requests are refused.
	Scope string
	// Relay are the bounds of relays; New sets Counters, Logger and Refuse.
	Relay relay.Options
	// Previews; nil: there are no links, and ports are seen through the API only.
	Previews *Previews
	// Others are handlers of other protocols on the same listeners.
	Others []Other
}

// Defaults of [Options].
const (
	DefaultMaxBody        = 1 << 20
	DefaultMaxFile        = 1 << 30
	DefaultMaxTree        = 64 << 30 // as the volumes of a tenant
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
	ports   *preview.Proxy
	relays  chan struct{} // holds a token for each open relay
	// How many requests and relays one tenant may have open.
	loggingIn                              chan struct{} // maxLogins places
	requestShare, relayShare, previewShare *share
	previewing                             chan struct{}  // holds a token for each request to a host name of previews
	histories                              chan struct{}  // holds a token for each answer about the history or the usage
	historyShare                           *share         // of one tenant, of histories
	outputs                                *budget.Budget // of the content of outputs
	logins                                 endedLogins

	base    context.Context // of all requests
	cancel  context.CancelFunc
	streams context.Context // ends when endless streams are to end
	stop    context.CancelFunc

	mu      sync.Mutex
	servers []*http.Server

	runs     sync.WaitGroup        // whose clients pass descriptors; with mu while streams has not ended
	runConns map[net.Conn]struct{} // of runs
	accepts  *share                // of one tenant, of the runs whose descriptors are being accepted

	insideOnce sync.Once
	inside     *inside // nil: no door has connected, or the server was shut down before
	insideEnd  sync.WaitGroup
}

// New returns a server that has no listener yet.
func New(o Options) *Server {
	o.MaxBody = cmp.Or(o.MaxBody, DefaultMaxBody)
	o.MaxFile = cmp.Or(o.MaxFile, DefaultMaxFile)
	o.MaxTree = cmp.Or(o.MaxTree, DefaultMaxTree)
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
		relays:    make(chan struct{}, o.MaxRelays),
		loggingIn: make(chan struct{}, maxLogins), requestShare: newShare(o.MaxConnections), relayShare: newShare(o.MaxRelays), previewShare: newShare(o.MaxConnections),
		previewing: make(chan struct{}, o.MaxConnections),
		histories:  make(chan struct{}, maxHistories), historyShare: newShare(maxHistories),
		runConns: map[net.Conn]struct{}{}, accepts: newShare(maxAccepts),
		outputs: budget.New(maxOutputBytes, tenantOutputBytes),
	}
	o.Relay.Counters, o.Relay.Logger, o.Relay.Refuse = &o.Metrics.relay, o.Logger, refuseRelay
	s.hubs = newHubTable(o.Relay)
	ports := preview.Options{Dial: s.dialPort, Changed: s.portsChanged, OwnAuthorization: s.ownAuthorization, Counters: &o.Metrics.preview, Logger: o.Logger}
	if o.Previews != nil {
		ports.DropHeaders = o.Previews.DropHeaders
	}
	s.ports = preview.New(ports)
	o.Sessions.WhenBoxEnds(func(key session.Key) { s.ports.Forget(key.Tenant, key.ID) })
	s.base, s.cancel = context.WithCancel(context.Background())
	s.streams, s.stop = context.WithCancel(context.Background())
	s.metrics.registry.MustRegister(newCollector(s))
	s.openapi = sync.OnceValue(Document)
	s.mux = newMux()
	return s
}

// Serve accepts connections of l until Shutdown, and closes l. With config it speaks TLS.
// It returns nil after Shutdown.
func (s *Server) Serve(l net.Listener, config *tls.Config) error {
	srv, err := s.newHTTP(config, s)
	if err != nil {
		return l.Close()
	}
	return serveOn(srv, l, config)
}

func serveOn(srv *http.Server, l net.Listener, config *tls.Config) (err error) {
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

func (s *Server) newHTTP(config *tls.Config, handler http.Handler) (*http.Server, error) {
	protocols := new(http.Protocols)
	protocols.SetHTTP1(true) // only HTTP/1.1, because WebSocket takes over the connection
	conns := newConnTable(s.opt.MaxConnections)
	srv := &http.Server{
		Handler:           handler,
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

// Shutdown stops accepting connections and waits until the current requests are answered or
// ctx ends; then it cancels them and waits once more. It ends endless streams and what
// goes to ports of boxes at once, and asks the clients of relays to reconnect.
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
	wg.Go(func() { errs[len(servers)] = s.drainRuns(ctx) })
	wg.Go(s.hubs.close)
	s.ports.Close() // a page may load for ever
	wg.Wait()
	s.insideEnd.Wait()
	s.cancel()
	return errors.Join(errs...)
}

// lastWait is how long cancelled requests may take to end.
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
