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

// Options configure a Door.
type Options struct {
	// Token is the secret that clients must present; "" means none.
	Token string
	// Instance is the only instance that may connect. "" pins the instance of the first
	// connection with actions, for the life of the Door.
	Instance string
	// PerConnection trusts the instance that each connection names, and pins none. It is
	// for a transport that only LangBot's own user can reach.
	PerConnection bool
	// Local decides, in addition to Token, whether a client of [Door.Serve] may connect. uid
	// is the user of this host who opened the client's socket; it is meaningless if err says
	// why the user is not known. The text of Local's error is sent to the client. nil admits
	// everyone.
	Local func(uid int, err error) error
	// Logger logs what an operator should know; nil discards it.
	Logger *slog.Logger
	// MaxConnections is the maximum number of connections, relays included; 0 means 256.
	MaxConnections int
	// Memory bounds the memory for messages. Doors may share one; nil means one of its own.
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

	// pinning is held while a first connection is being upgraded, so that only one can be
	// the first. It is locked before mu.
	pinning sync.Mutex

	mu          sync.Mutex
	pinned      string
	conns       map[*conn]struct{}
	actionConns int // connections with actions, including those that are being upgraded
	relayConns  int // connections of relays, which belong to the backend: Close does not wait for them
	stopped     bool
	servers     map[*http.Server]struct{}
	idle        *sync.Cond // actionConns has decreased
}

// times bound how long things may take; tests shorten them.
type times struct {
	ping    time.Duration // between two pings
	silence time.Duration // of the peer, until it counts as lost
	message time.Duration // from the first to the last byte of a message
	write   time.Duration // for one reply, plus a second per MiB
	linger  time.Duration // for the peer's answer to a close frame
	turn    time.Duration // for a long message, while others wait to send one
	wait    time.Duration // for such a turn
	stall   time.Duration // for which a peer may accept nothing of a reply, when others need the room
}

// The peer pings every 20 seconds, but its event loop is known to stall, so silence allows
// for several pings. The peer's pings queue up behind the message that it is sending: they
// are not answered before that message has had its turn and is read. The peer waits 15
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
		// If it has a size for reading, the Upgrader reads from the connection that it is
		// given, and not from the buffer of net/http.
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

// takeSlot counts a connection in kind, which is actionConns or relayConns. If there are too
// many connections, it refuses the request.
func (d *Door) takeSlot(w http.ResponseWriter, kind *int) bool {
	d.mu.Lock()
	free := !d.stopped && d.actionConns+d.relayConns < d.o.MaxConnections
	if free {
		*kind++
	}
	d.mu.Unlock()
	if !free {
		text(w, http.StatusServiceUnavailable, "503: the server is stopping, or has as many connections as it takes")
	}
	return free
}

func (d *Door) freeSlot(kind *int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	*kind--
	d.idle.Broadcast()
}

// addConn registers c, unless the door was closed in the meantime.
func (d *Door) addConn(c *conn) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.stopped {
		return false
	}
	d.conns[c] = struct{}{}
	return true
}

func (d *Door) removeConn(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.conns, c)
}

// stopReason is the close reason that clients know for a server that stops.
const stopReason = "Box runtime shutting down"

// Close ends all connections that carry actions with this code and reason, and cancels
// their actions. It returns when the last call of Backend.Closed has returned. New
// connections get 503.
func (d *Door) Close(code int, reason string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.stopped = true
	for c := range d.conns {
		c.wg.Go(func() { c.shut(code, reason) }) // c waits for it only after removeConn
	}
	for d.actionConns > 0 {
		d.idle.Wait()
	}
}

// Shutdown calls Close with the code for a server that stops, and ends Serve. If ctx ends
// first, it returns without waiting for the remaining connections.
func (d *Door) Shutdown(ctx context.Context) error {
	d.mu.Lock()
	servers := d.servers
	d.servers = nil
	d.mu.Unlock()
	for s := range servers {
		s.Close() // interrupts probes; connections with actions no longer belong to it
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
