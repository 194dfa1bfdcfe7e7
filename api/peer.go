package api

import (
	"context"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/boxd/boxd/internal/linux"
)

// peerInterval is how often a request that waits looks whether its client is gone.
const peerInterval = 2 * time.Second

// untilGone is the context of the request, which ends within peerInterval of the
// client. net/http ends it at once, but only if the client has sent nothing behind
// its request: with one more byte (a second request, or nonsense) it looks no more.
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

// rawConn is the socket below c, or nil if there is none.
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
