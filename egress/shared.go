package egress

import (
	"context"
	"syscall"
)

// Shared bounds the sockets that all proxies of a process have open together, so that boxes
// leave descriptors to the rest of the process. It is safe for concurrent use.
type Shared struct {
	// sockets has a token for each connection from a box that has made its request, and for
	// each one to the network. A proxy that gets none refuses its box.
	sockets chan struct{}
	// heads has a token for each connection without a request yet. The others wait, as
	// those do for which the box has no token of its own; none waits longer than headTime
	// for another box.
	heads chan struct{}
	// spare is heads for boxes with at most fewTokens of them.
	spare chan struct{}
}

// fewTokens is how many sockets, and how many heads, a box may have while those that are left are for
// boxes with few: a quarter, so that a few busy boxes do not keep all others from the network.
const fewTokens = 8

// NewShared returns a bound of n sockets, at least 16. An eighth of them is for connections
// without a request yet. A quarter of either part is for boxes that have few. Beside them, the proxies have two listeners and up to two accepted
// connections for each box, and 64 descriptors of pipes.
func NewShared(n int) *Shared {
	n = max(n, 16)
	heads := n / 8
	return &Shared{sockets: make(chan struct{}, n-heads), heads: make(chan struct{}, heads-heads/4), spare: make(chan struct{}, heads/4)}
}

// takeSocket takes a token of sockets for a box that has used of them, and reports whether there was
// one. Boxes that take tokens at the same time may each get one too many of those that are left.
func (s *Shared) takeSocket(used int) bool {
	if c := cap(s.sockets); used >= fewTokens && len(s.sockets) >= c-c/4 {
		return false
	}
	select {
	case s.sockets <- struct{}{}:
		return true
	default:
		return false
	}
}

// takeHead waits for a token of heads for a box that will have used of them, and returns where it came
// from. It returns nil if ctx ends before.
func (s *Shared) takeHead(ctx context.Context, used int) chan struct{} {
	select {
	case s.heads <- struct{}{}:
		return s.heads
	default:
	}
	spare := s.spare
	if used > fewTokens {
		spare = nil
	}
	select {
	case s.heads <- struct{}{}:
		return s.heads
	case spare <- struct{}{}:
		return spare
	case <-ctx.Done():
		return nil
	}
}

// halfOfFiles returns a bound of half the descriptors that this process may have.
func halfOfFiles() *Shared {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		limit.Cur = 1024 // the default of most systems
	}
	return NewShared(int(min(limit.Cur, 1<<20) / 2))
}

// limitError is a limit that a connection would exceed.
type limitError struct{ rule, text string }

func (e *limitError) Error() string { return e.text }

var (
	// errBusy: Limits.Connections are open.
	errBusy = &limitError{"limit of connections", "this box has as many connections as it may have"}
	// errFull: the proxies of all boxes have as many sockets as they may have.
	errFull = &limitError{"limit of connections of all boxes", "all boxes together have as many connections as they may have; retry later"}
	// errSpent: the box has used up Limits.Bytes.
	errSpent = &limitError{"limit of bytes", "the limit of bytes for this box is used up"}
)

const (
	// connectionBurst is how many seconds' worth of Limits.ConnectionRate a box may use at once.
	connectionBurst = 10
	// maxDials is how many sockets to the network a box may have beyond Limits.Connections:
	// kept ones, and attempts that go on although nobody waits for them any more.
	maxDials = 256
)

// takeSocket books a socket to the network. The caller gives it back with freeSocket,
// unless the socket was tracked: then drop does.
func (p *Proxy) takeSocket() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sockets >= p.now.Load().set.Limits.Connections+maxDials {
		return errBusy
	}
	if !p.cfg.Shared.takeSocket(p.clients + p.sockets) {
		return errFull
	}
	p.sockets++
	return nil
}

func (p *Proxy) freeSocket() {
	p.mu.Lock()
	p.sockets--
	p.mu.Unlock()
	<-p.cfg.Shared.sockets
}
