package egress

import (
	"bufio"
	"cmp"
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/boxd/boxd/egress/rules"
)

const (
	// headTime is how long a program may take for its request head, its SOCKS greeting
	// or its ClientHello.
	headTime = 10 * time.Second
	// maxHeads is how many connections of a box may be in that state at once. The others
	// wait in the listener's backlog, so they cost the daemon nothing.
	maxHeads = 64
	// lingerTime is how long a program may take to read the last answer.
	lingerTime = time.Second
	// keepAlive is how long a connection may wait for its next HTTP request.
	keepAlive = time.Minute
)

// Config is what a [Proxy] is made of. The zero value of every field is valid.
type Config struct {
	Rules rules.Rules
	// Spent is how many bytes earlier proxies of this box have moved, against Limits.Bytes.
	Spent int64
	// Resolve returns the addresses of an absolute name (with a trailing dot), or of a single label, in the
	// order of preference; nil means the host's resolver. It must obey ctx.
	Resolve func(ctx context.Context, name string) ([]netip.Addr, error)
	Host    rules.Surroundings
	// Shared bounds this proxy and others of the process together; nil means a bound of its
	// own, of half the descriptors that the process may have.
	Shared *Shared
	// Roots verify servers of injected requests; nil means the host's.
	Roots *x509.CertPool
	// Admit is asked about each connection that the rules allow, before its name is resolved.
	// After an error the program is told that the connection cannot be logged. Admit is called
	// from several goroutines and may wait until ctx ends; nil admits all.
	Admit func(ctx context.Context, c Connection) error
	// Observe gets each connection when it ends or is refused. It is called from several
	// goroutines, each of which waits for it, and must not call methods of the Proxy.
	Observe func(Connection)
	// Trouble gets errors that the operator must mend and the box must not learn, such as a
	// secret that cannot be read, each time that a request meets them. nil drops them. It is
	// called like Observe.
	Trouble func(error)
}

// Proxy serves one box. Its methods are safe for concurrent use.
type Proxy struct {
	cfg      Config
	ctx      context.Context // ends with Shut
	cancel   context.CancelFunc
	heads    chan struct{} // a token for each connection without a request yet
	nextID   atomic.Uint64
	spent    atomic.Int64 // bytes, against Limits.Bytes
	bucket   *rate.Limiter
	accepts  *rate.Limiter         // connections from the box, at Limits.ConnectionRate
	dials    *rate.Limiter         // by transports, likewise
	dialling chan struct{}         // a token for each dial of a transport, which may outlive its request
	now      atomic.Pointer[state] // written with mu held
	// connect dials ap with d, whose Control decides. Tests replace the network behind it.
	connect  func(ctx context.Context, d *net.Dialer, ap netip.AddrPort) (net.Conn, error)
	routed   func(netip.Addr) (bool, error) // routedHere, but in tests
	patience time.Duration                  // drainTime, but in tests
	wg       sync.WaitGroup                 // Serve, and every connection; Add with mu held and shut false

	mu        sync.Mutex
	shut      bool
	listeners map[net.Listener]struct{}
	conns     map[*net.TCPConn]bool // every open connection; true: to the network, with a socket of takeSocket
	flows     map[*flow]struct{}
	clients   int // connections that hold a slot of Limits.Connections
	sockets   int // to the network, also those that are being made
	denials   map[denialKey]int64
}

// state is what changes with SetRules.
type state struct {
	set       *rules.Set
	transport *http.Transport
}

// ErrShut is returned by Serve after Shut.
var ErrShut = errors.New("the network of this box is off")

var errUnknown = errors.New("neither HTTP nor SOCKS5")

// New returns a proxy that serves no listener yet. Errors are those of [rules.Compile].
func New(c Config) (*Proxy, error) {
	set, err := rules.Compile(c.Rules)
	if err != nil {
		return nil, err
	}
	if c.Resolve == nil {
		c.Resolve = func(ctx context.Context, name string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", name)
		}
	}
	if c.Admit == nil {
		c.Admit = func(context.Context, Connection) error { return nil }
	}
	if c.Observe == nil {
		c.Observe = func(Connection) {}
	}
	if c.Shared == nil {
		c.Shared = halfOfFiles()
	}
	if c.Trouble == nil {
		c.Trouble = func(error) {}
	}
	p := &Proxy{cfg: c, heads: make(chan struct{}, maxHeads), bucket: rate.NewLimiter(rate.Inf, 0),
		accepts: newConnections(set), dials: newConnections(set), dialling: make(chan struct{}, maxDials), routed: routedHere, patience: drainTime,
		listeners: map[net.Listener]struct{}{}, conns: map[*net.TCPConn]bool{}, flows: map[*flow]struct{}{}, denials: map[denialKey]int64{}}
	p.connect = func(ctx context.Context, d *net.Dialer, ap netip.AddrPort) (net.Conn, error) {
		return d.DialContext(ctx, "tcp", ap.String())
	}
	p.spent.Store(c.Spent)
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.apply(set)
	return p, nil
}

// newConnections returns a limiter at Limits.ConnectionRate.
func newConnections(set *rules.Set) *rate.Limiter {
	return rate.NewLimiter(rate.Limit(set.Limits.ConnectionRate), connectionBurst*set.Limits.ConnectionRate)
}

// apply makes set the rules in force. The caller holds p.mu, or is New.
func (p *Proxy) apply(set *rules.Set) {
	if bw := int(set.Limits.Bandwidth); bw > 0 {
		// A tenth of a second, but enough for one packet.
		p.bucket.SetBurst(max(bw/10, 2<<10))
		p.bucket.SetLimit(rate.Limit(bw))
	} else {
		p.bucket.SetLimit(rate.Inf)
	}
	for _, l := range []*rate.Limiter{p.accepts, p.dials} {
		l.SetBurst(connectionBurst * set.Limits.ConnectionRate)
		l.SetLimit(rate.Limit(set.Limits.ConnectionRate))
	}
	p.now.Store(&state{set, p.newTransport(set)})
}

// SetRules changes the rules at once. When it returns, every connection that the new rules
// do not allow is closed. Counters continue. Errors are those of [rules.Compile]; the old
// rules stay in force then.
func (p *Proxy) SetRules(r rules.Rules) error {
	set, err := rules.Compile(r)
	if err != nil {
		return err
	}
	p.mu.Lock()
	old := p.now.Load()
	p.apply(set)
	rerouted := old.set.Rules.Upstream != set.Rules.Upstream
	for f := range p.flows {
		if rerouted {
			f.closeLocked("the upstream proxy changed")
		} else if v := f.judgeLocked(set); !v.Allowed {
			f.closeLocked("the rules changed: " + v.Reason)
		} else {
			f.verdict.Rule = v.Rule
		}
	}
	p.mu.Unlock()
	if set.Limits.Idle < old.set.Limits.Idle {
		// The timers of those that are parked run for the old time.
		for _, d := range takeParked(func(d *parked) bool { return d.f.p == p }) {
			go d.resume()
		}
		leave()
	}
	// Those that wait for a next request; closing them takes p.mu.
	old.transport.CloseIdleConnections()
	return nil
}

// Shut turns the network off for good: it closes the listeners and resets every connection,
// also those that are being established or that the kernel still sends for. After it returns
// no byte moves in either direction; bytes that the kernel had not sent yet are dropped. It
// does not wait for Observe, for descriptors (see [Proxy.Wait]), or for the resets by which
// programs in the box learn that idle connections have ended. It may be called several times.
func (p *Proxy) Shut() {
	p.mu.Lock()
	p.shut = true
	p.cancel()
	for l := range p.listeners {
		l.Close()
	}
	for f := range p.flows {
		f.reasonLocked("the network was turned off")
	}
	// A parked direction moves nothing until it is resumed. So no byte leaves an idle tunnel towards its program any
	// more, and the reset of that side, which is half of the work if thousands are idle, can wait.
	idle := takeParked(func(d *parked) bool { return d.f.p == p })
	later := make(map[*net.TCPConn]bool, len(idle)/2)
	for _, d := range idle {
		if d.still && !p.conns[d.dst] {
			later[d.dst] = true
		}
	}
	now := make([]*net.TCPConn, 0, len(p.conns))
	for c := range p.conns {
		if !later[c] {
			now = append(now, c)
		}
	}
	resetAll(now)
	p.mu.Unlock()
	if len(idle) > 0 {
		// One goroutine that gives way does all of that, so the caller of Shut finds a processor for its answer.
		go func() {
			for c := range later {
				reset(c)
				runtime.Gosched()
			}
			leave()
			for _, d := range idle {
				d.resume()
				runtime.Gosched()
			}
		}()
	}
	p.now.Load().transport.CloseIdleConnections()
}

// Wait returns when every Serve and every connection has ended and was observed. It is
// called after Shut.
func (p *Proxy) Wait() {
	p.wg.Wait()
	closeIdlePipes() // those of other proxies are made again
}

// join takes part in Wait: the caller calls p.wg.Done. It reports false if the proxy is shut.
func (p *Proxy) join() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.shut {
		p.wg.Add(1)
	}
	return !p.shut
}

// track lets c, which has a socket of takeSocket, take part in Shut. It reports false, and
// closes c, if the proxy is shut.
func (p *Proxy) track(c *net.TCPConn) bool {
	p.mu.Lock()
	shut := p.shut
	if !shut {
		p.conns[c] = true
	}
	p.mu.Unlock()
	if shut {
		reset(c)
		c.Close()
		p.freeSocket()
	}
	return !shut
}

// drop closes a connection that was tracked, after the kernel has sent what is queued on it.
func (p *Proxy) drop(c *net.TCPConn) {
	p.drain(c)
	p.mu.Lock()
	remote := p.conns[c]
	delete(p.conns, c)
	p.mu.Unlock()
	c.Close()
	if remote {
		p.freeSocket()
	}
}

// Serve accepts connections of programs in the box, for HTTP and for SOCKS5, until Shut or
// until l fails. It takes ownership of l. The error after Shut is [ErrShut].
func (p *Proxy) Serve(l *net.TCPListener) error {
	p.mu.Lock()
	if p.shut {
		p.mu.Unlock()
		l.Close()
		return ErrShut
	}
	p.listeners[l] = struct{}{}
	p.wg.Add(1)
	p.mu.Unlock()
	defer p.wg.Done()
	defer func() {
		l.Close()
		p.mu.Lock()
		delete(p.listeners, l)
		p.mu.Unlock()
	}()
	for pause := time.Duration(0); ; {
		// Further connections wait in the listener's queue, and then as unanswered requests.
		if p.accepts.Wait(p.ctx) != nil {
			return ErrShut
		}
		select {
		case p.heads <- struct{}{}:
		case <-p.ctx.Done():
			return ErrShut
		}
		c, err := l.AcceptTCP()
		if err == nil {
			pause = 0
			if token := p.cfg.Shared.takeHead(p.ctx, len(p.heads)); token != nil {
				p.begin(c, token)
				continue
			}
			reset(c)
			c.Close()
		}
		<-p.heads
		if p.ctx.Err() != nil {
			return ErrShut
		}
		// The host may be short of descriptors or memory for a while.
		if temporary, ok := errors.AsType[interface {
			error
			Temporary() bool
		}](err); !ok || !temporary.Temporary() {
			return fmt.Errorf("accepting connections of a box: %w", err)
		}
		pause = min(max(2*pause, 5*time.Millisecond), time.Second)
		select {
		case <-time.After(pause):
		case <-p.ctx.Done():
		}
	}
}

// begin serves c, for which the caller holds a token of heads and one that Shared.takeHead took from
// shared.
func (p *Proxy) begin(c *net.TCPConn, shared chan struct{}) {
	p.mu.Lock()
	if p.shut {
		p.mu.Unlock()
		reset(c)
		c.Close()
		<-shared
		<-p.heads
		return
	}
	p.conns[c] = false
	p.wg.Add(1)
	p.mu.Unlock()
	// Errors leave the system's bounds.
	c.SetReadBuffer(sendBuffer)
	c.SetWriteBuffer(sendBuffer)
	br := readers.Get().(*bufio.Reader)
	k := &client{p: p, c: c, br: br, head: shared}
	br.Reset(k)
	go k.serve()
}

var readers = sync.Pool{New: func() any { return bufio.NewReaderSize(nil, 4<<10) }}

// client is a connection from the box. One goroutine owns it until a tunnel begins.
type client struct {
	p      *Proxy
	c      *net.TCPConn
	br     *bufio.Reader               // over the client itself; nil once a tunnel owns the connection
	body   atomic.Pointer[requestBody] // of the request that is being read, if any
	head   chan struct{}               // holds a token of heads and one of this channel of Shared; nil later
	inSlot bool                        // holds a slot of Limits.Connections and a token of Shared.sockets
}

// Read reads from the connection. The body of a request may take longer than the deadline while bytes move.
func (k *client) Read(p []byte) (int, error) {
	for {
		n, err := k.c.Read(p)
		b := k.body.Load()
		if n > 0 || err == nil || b == nil {
			return n, err
		}
		if xerr := b.f.extend(k.c.SetReadDeadline, b.f.idle(), err); xerr != nil || b.ending.Load() {
			return 0, cmp.Or(xerr, err)
		}
	}
}

// serve reads the first byte, which tells SOCKS5 from HTTP.
func (k *client) serve() {
	k.c.SetDeadline(time.Now().Add(headTime))
	first, err := k.br.Peek(1)
	tunnelled := false
	switch {
	case err != nil:
	case first[0] == 5:
		tunnelled = k.serveSOCKS()
	case first[0] < 'A': // SOCKS4, for example, which would wait for an answer
		k.malformed("unknown", rules.Target{}, errUnknown)
	default:
		tunnelled = k.serveHTTP(nil)
	}
	if !tunnelled {
		k.end()
	}
}

// end closes the connection and gives back all that it holds.
func (k *client) end() {
	p := k.p
	if k.br != nil {
		k.giveReader()
	}
	p.drop(k.c)
	if k.head != nil {
		k.leaveHead()
	}
	if k.inSlot {
		p.mu.Lock()
		p.clients--
		p.mu.Unlock()
		<-p.cfg.Shared.sockets
	}
	p.wg.Done()
}

func (k *client) leaveHead() {
	<-k.head
	<-k.p.heads
	k.head = nil
}

func (k *client) giveReader() {
	k.br.Reset(nil)
	readers.Put(k.br)
	k.br = nil
}

// enter exchanges the tokens of heads for a connection slot, once. The error is a
// *limitError, counted as a denial of t.
func (k *client) enter(t rules.Target) error {
	p, limits := k.p, k.p.now.Load().set.Limits
	var exceeded *limitError
	switch {
	case limits.Bytes > 0 && p.spent.Load() >= int64(limits.Bytes):
		exceeded = errSpent
	case k.inSlot:
		return nil
	default:
		exceeded = k.takeSlot(limits.Connections)
	}
	if exceeded != nil {
		p.denied(t.String(), exceeded.rule)
		return exceeded
	}
	k.leaveHead()
	return nil
}

// takeSlot takes one of the box's slots and a token of Shared.sockets.
func (k *client) takeSlot(slots int) *limitError {
	p := k.p
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.clients >= slots {
		return errBusy
	}
	if !p.cfg.Shared.takeSocket(p.clients + p.sockets) {
		return errFull
	}
	p.clients++
	k.inSlot = true
	return nil
}
