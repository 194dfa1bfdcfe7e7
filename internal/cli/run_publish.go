package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/tcprelay"
)

const (
	// maxCallers bounds the connections through the published ports of a box. Each has two descriptors
	// and, with callerBuffer, at most 1 MiB of socket buffers. Further ones are reset.
	maxCallers   = 256
	callerBuffer = 128 << 10 // bytes of each of the four socket buffers, which the kernel doubles
	callerIdle   = 15 * time.Minute
	callerDial   = 10 * time.Second
	// callerDrain is how long clients can still read what the command sent before it ended.
	callerDrain = time.Second
)

// publish opens ports of 127.0.0.1 and connects their clients to box, in this process, until the caller
// calls shut. A line on stderr names each port that was not chosen by wishes. Every user of the host can
// connect.
func (a *App) publish(ctx context.Context, box engine.Box, wishes []spec.PublishWish) (shut func(), err error) {
	if len(wishes) == 0 {
		return func() {}, nil
	}
	networked, ok := box.(engine.Networked)
	if !ok {
		return nil, errors.New("--publish: this engine gives boxes no ports")
	}
	wishes = slices.Clone(wishes) // those with a port come first, so that no free one takes it
	slices.SortStableFunc(wishes, func(a, b spec.PublishWish) int { return int(b.Host - a.Host) })
	var listeners []*net.TCPListener
	closeAll := func() {
		for _, l := range listeners {
			l.Close()
		}
	}
	for _, w := range wishes {
		l, err := net.ListenTCP("tcp4", &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(w.Host)})
		if err != nil {
			closeAll()
			if errors.Is(err, syscall.EADDRINUSE) {
				err = errors.New("the port of the host is in use: choose another one, or leave it out for any free one")
			}
			return nil, fmt.Errorf("--publish %s: %w", spec.Quote(w.String()), err)
		}
		listeners = append(listeners, l)
	}
	ctx, cancel := context.WithCancel(ctx)
	callers := make(chan struct{}, maxCallers)
	var wg sync.WaitGroup
	for i, l := range listeners {
		if wishes[i].Host == 0 {
			a.say("boxd: %s leads to port %d of the box", l.Addr(), wishes[i].Port)
		}
		wg.Go(func() {
			for {
				client, err := l.AcceptTCP()
				switch {
				case errors.Is(err, net.ErrClosed):
					return
				case err != nil: // of one connection, or no descriptors are left
					select {
					case <-time.After(100 * time.Millisecond):
					case <-ctx.Done():
					}
					continue
				}
				select {
				case callers <- struct{}{}:
					wg.Go(func() {
						carryCaller(ctx, networked, wishes[i].Port, client)
						<-callers
					})
				default:
					tcprelay.Abort(client)
				}
			}
		})
	}
	return func() {
		closeAll()
		drain := time.AfterFunc(callerDrain, cancel)
		wg.Wait()
		drain.Stop()
		cancel()
	}, nil
}

// carryCaller connects client to a port of box until both streams have ended, or ctx ends. If nothing
// listens there, client is reset.
func carryCaller(ctx context.Context, box engine.Networked, port int, client *net.TCPConn) {
	defer context.AfterFunc(ctx, func() { tcprelay.Abort(client) })()
	dialing, cancel := context.WithTimeout(ctx, callerDial)
	defer cancel()
	conn, err := box.Dial(dialing, port)
	if err != nil {
		tcprelay.Abort(client)
		return
	}
	server := conn.(*net.TCPConn) // a TCP port of loopback
	defer context.AfterFunc(ctx, func() { tcprelay.Abort(server) })()
	if errors.Join(tcprelay.Bound(client, callerBuffer), tcprelay.Bound(server, callerBuffer)) != nil { // one of them is closed
		tcprelay.Abort(client)
		tcprelay.Abort(server)
		return
	}
	_, _, _ = tcprelay.Relay(client, server, callerIdle) // an error resets both, which tells the client
}
