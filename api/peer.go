package api

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/boxd/boxd/internal/linux"
)

// peerInterval is how often a waiting request checks whether its client has gone.
const peerInterval = 2 * time.Second

// untilGone returns the context of the request, but such that it ends within peerInterval
// of the client's disconnection. net/http ends it at once, unless the client has sent more
// bytes after its request (a second request, or garbage): then net/http does not notice.
func (c *call) untilGone() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(c.r.Context())
	info, _ := ctx.Value(connKey{}).(*connInfo)
	if info == nil || info.raw == nil {
		return ctx, cancel
	}
	var watch sync.WaitGroup
	watch.Go(func() {
		tick := time.NewTicker(peerInterval)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
				if linux.HungUp(info.raw) {
					cancel()
				}
			}
		}
	})
	return ctx, func() { cancel(); watch.Wait() }
}

// rawConn returns the socket below c, or nil.
func rawConn(c net.Conn) syscall.RawConn {
	s, ok := c.(syscall.Conn)
	if !ok {
		return nil
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}
