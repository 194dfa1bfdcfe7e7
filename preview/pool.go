package preview

import (
	"context"
	"errors"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"
)

var (
	errFull   = errors.New("the session has too many open requests")
	errGone   = errors.New("the session has ended")
	errClosed = errors.New("the proxy is closed")
	errIdle   = errors.New("no byte moved for too long")
)

// pool knows the connections of each session.
type pool struct {
	counters *Counters
	idle     time.Duration
	most     int

	mu      sync.Mutex
	closed  bool
	serial  uint64
	entries map[[2]string]*entry // by tenant and session
}

// entry is a session that has requests or connections, until it is forgotten.
type entry struct {
	name [2]string
	id   uint64 // so that no connection of an earlier entry is used for this one
	ctx  context.Context
	end  context.CancelFunc

	open  int // requests and tunnels; guarded by pool.mu, as conns is
	conns map[*boxConn]struct{}
}

// key names a port of the entry to the transport.
func (e *entry) key(port int) string {
	return "s" + strconv.FormatUint(e.id, 10) + "-" + strconv.Itoa(port)
}

func (p *pool) acquire(t Target) (*entry, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, errClosed
	}
	name := [2]string{t.Tenant, t.Session}
	e := p.entries[name]
	if e == nil {
		p.serial++
		e = &entry{name: name, id: p.serial, conns: map[*boxConn]struct{}{}}
		e.ctx, e.end = context.WithCancel(context.Background())
		p.entries[name] = e
	}
	if e.open >= p.most {
		return nil, errFull
	}
	e.open++
	p.counters.Open.Add(1)
	return e, nil
}

func (p *pool) release(e *entry) {
	p.mu.Lock()
	defer p.mu.Unlock()
	e.open--
	p.counters.Open.Add(-1)
	p.dropUnusedLocked(e)
}

func (p *pool) dropUnusedLocked(e *entry) {
	if e.open == 0 && len(e.conns) == 0 && p.entries[e.name] == e {
		delete(p.entries, e.name)
		e.end()
	}
}

// add takes the connection, and closes it if the entry has been forgotten meanwhile.
func (p *pool) add(e *entry, c net.Conn) (*boxConn, error) {
	b := &boxConn{Conn: c, pool: p, entry: e}
	b.active.Store(time.Now().UnixNano())
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.entries[e.name] != e {
		c.Close()
		return nil, errGone
	}
	e.conns[b] = struct{}{}
	b.watch = time.AfterFunc(p.idle, b.checkIdle)
	return b, nil
}

func (p *pool) forget(tenant, session string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.entries[[2]string{tenant, session}]; e != nil {
		p.forgetLocked(e)
	}
}

func (p *pool) forgetLocked(e *entry) {
	delete(p.entries, e.name)
	e.end()
	for c := range e.conns {
		go c.Close() // it takes the lock
	}
}

func (p *pool) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for _, e := range p.entries {
		p.forgetLocked(e)
	}
}

// boxConn is a connection to a box. It ends when no byte moves for too long: the kernel
// keeps one to a server that never answers as long as the box lives.
type boxConn struct {
	net.Conn
	pool  *pool
	entry *entry

	watch   *time.Timer  // guarded by pool.mu
	active  atomic.Int64 // when a byte moved, in Unix nanoseconds
	expired atomic.Bool
}

func (c *boxConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	return c.moved(&c.pool.counters.Out, n, err)
}

func (c *boxConn) Write(p []byte) (int, error) {
	n, err := c.Conn.Write(p)
	return c.moved(&c.pool.counters.In, n, err)
}

func (c *boxConn) moved(total *atomic.Int64, n int, err error) (int, error) {
	if n > 0 {
		total.Add(int64(n))
		c.active.Store(time.Now().UnixNano())
	}
	if err != nil && c.expired.Load() {
		err = &net.OpError{Op: "read", Net: "tcp", Err: errIdle}
	}
	return n, err
}

// CloseWrite ends one direction of an upgraded connection.
func (c *boxConn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return os.ErrInvalid
}

func (c *boxConn) Close() error {
	c.pool.mu.Lock()
	c.watch.Stop()
	delete(c.entry.conns, c)
	c.pool.dropUnusedLocked(c.entry)
	c.pool.mu.Unlock()
	return c.Conn.Close()
}

// keep ends the watch: the user of the connection bounds its waits.
func (c *boxConn) keep() {
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	c.watch.Stop()
}

func (c *boxConn) checkIdle() {
	left := c.pool.idle - time.Since(time.Unix(0, c.active.Load()))
	if left <= 0 {
		c.expired.Store(true)
		c.Close()
		return
	}
	c.pool.mu.Lock()
	defer c.pool.mu.Unlock()
	if _, open := c.entry.conns[c]; open {
		c.watch.Reset(left)
	}
}
