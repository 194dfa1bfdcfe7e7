package door

import (
	"context"
	"crypto/sha256"
	"log/slog"
	"net/http"
	"sync"
	"time"

	"github.com/gorilla/websocket"
)

// Options of a Door.
type Options struct {
	// Token is the secret that clients must show; "" if none is needed.
	Token string
	// Instance is the only one that may connect. "" pins that of the first connection
	// with actions, for as long as the Door lives.
	Instance string
	// PerConnection trusts the instance that each connection names, and pins none: for
	// a transport that only LangBot's own user can reach.
	PerConnection bool
	// Local decides about each client of [Door.Serve], besides Token: uid is the user of
	// this host who made the client's socket, and means nothing if err says why that is
	// not known. An error of Local is the line that refuses the client. nil: all may.
	Local func(uid int, err error) error
	// Logger gets what an operator should know; nil is silence.
	Logger *slog.Logger
	// MaxConnections is the most connections at once, relays included; 0 is 256.
	MaxConnections int
	// Memory bounds the messages of all connections, together with those of other Doors
	// that have the same; nil: by themselves.
	Memory *Memory
}

// Door is an http.Handler for everything under LangBot's address. It is safe for
// concurrent use.
type Door struct {
	b        Backend
	o        Options
	memory   *Memory
	token    [sha256.Size]byte
	times    times
	seldom   seldom
	upgrader websocket.Upgrader

	// pinning is held while a first connection is being upgraded, so that two cannot
	// both be the first. It comes before mu.
	pinning sync.Mutex

	mu      sync.Mutex
	pinned  string
	conns   map[*conn]struct{}
	taken   int // connections with actions, also those that are being upgraded
	relays  int // those of relays, for which Close does not wait: they are the backend's
	stopped bool
	servers map[*http.Server]struct{}
	idle    *sync.Cond // taken has become less
}

// times are how long things may take; tests have shorter ones.
type times struct {
	ping    time.Duration // between two pings
	silence time.Duration // of the peer, until it counts as lost
	message time.Duration // from the first to the last byte of a message
	write   time.Duration // for one reply, and a second more per MiB
	linger  time.Duration // for the peer to answer a close frame
	turn    time.Duration // for a long message, if others wait to send one
	wait    time.Duration // for such a turn
	stall   time.Duration // without taking anything of a reply, if there is no room for others
}

// The peer pings every 20 seconds of its own accord, but its event loop is known to
// stall: give it more than one chance. Its pings are behind the message that it is
// sending: while that waits for its turn and is read, they are not answered. It takes 15
// seconds for the answer to a __ping, and 20 for a pong.
var defaultTimes = times{ping: 20 * time.Second, silence: 90 * time.Second, message: 2 * time.Minute, write: 30 * time.Second, linger: 5 * time.Second,
	turn: 5 * time.Second, wait: 10 * time.Second, stall: 2 * time.Second}

const defaultMaxConnections = 256

// New returns a Door to b.
func New(b Backend, o Options) *Door {
	if o.MaxConnections == 0 {
		o.MaxConnections = defaultMaxConnections
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Memory == nil {
		o.Memory = NewMemory()
	}
	d := &Door{
		b: b, o: o, memory: o.Memory, token: sha256.Sum256([]byte(o.Token)), times: defaultTimes, pinned: o.Instance,
		conns: map[*conn]struct{}{}, servers: map[*http.Server]struct{}{},
		// With a size for reading, the Upgrader reads through the connection that it is
		// given, and not through the buffer that net/http had.
		upgrader: websocket.Upgrader{HandshakeTimeout: 10 * time.Second, ReadBufferSize: 8 << 10, WriteBufferSize: 4 << 10, EnableCompression: true},
	}
	d.idle = sync.NewCond(&d.mu)
	return d
}

// Instance returns the instance that is configured or pinned, "" if none is.
func (d *Door) Instance() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.pinned
}

// take makes room for one connection; it returns the status of the refusal if it cannot.
func (d *Door) take() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fullLocked() {
		return http.StatusServiceUnavailable
	}
	d.taken++
	return 0
}

func (d *Door) fullLocked() bool { return d.stopped || d.taken+d.relays >= d.o.MaxConnections }

// takeRelay makes room for a relay, if ok; free has to be called at its end.
func (d *Door) takeRelay() (free func(), ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.fullLocked() {
		return nil, false
	}
	d.relays++
	return func() {
		d.mu.Lock()
		defer d.mu.Unlock()
		d.relays--
	}, true
}

func (d *Door) give() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.taken--
	d.idle.Broadcast()
}

// enter adds c, unless the door was closed meanwhile.
func (d *Door) enter(c *conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return false
	}
	d.conns[c] = struct{}{}
	return true
}

func (d *Door) leave(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
}

// The reason of a close when the server stops, as clients know it.
const stopReason = "Box runtime shutting down"

// Close ends all connections that carry actions with this code and reason, cancels what
// is under way in them, and returns when the last Backend.Closed has. New ones get 503.
func (d *Door) Close(code int, reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	for c := range d.conns {
		c.wg.Go(func() { c.shut(code, reason) }) // c waits for it only after it has left
	}
	for d.taken > 0 {
		d.idle.Wait()
	}
}

// Shutdown is Close with the code for a server that stops, and ends what Serve has begun. When ctx
// ends before all connections have, it returns without them.
func (d *Door) Shutdown(ctx context.Context) error {
	d.mu.Lock()
	servers := d.servers
	d.servers = nil
	d.mu.Unlock()
	for s := range servers {
		s.Close() // cuts requests of probes; connections with actions are not its any more
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		d.Close(websocket.CloseGoingAway, stopReason)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
