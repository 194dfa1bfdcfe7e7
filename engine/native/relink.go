package native

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
)

// errLost marks the error of a request during which the connection was lost, so that it is
// unknown whether it was carried out.
var errLost = errors.New("connection lost")

// errUnsent also marks such an error if the launcher cannot have carried out the request,
// because it was not sent completely.
var errUnsent = errors.New("request not sent")

// Pauses between attempts to reconnect. After a launcher was killed, the next one serves
// within a fraction of a second: it prepares the image and finds its boxes.
const (
	firstPause = 5 * time.Millisecond
	lastPause  = 100 * time.Millisecond
	// reconnectPatience bounds how long a request waits for a launcher.
	reconnectPatience = 10 * time.Second
)

// lose ends all requests that wait for a reply over the connection that is gone.
func (l *link) lose(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conn, l.err = nil, err
	for id, ch := range l.waiting {
		close(ch)
		delete(l.waiting, id)
	}
	for id, r := range l.given {
		if r.typ == rpc.TypeCreate && r.box != "" {
			l.orphans = append(l.orphans, r.box)
		}
		delete(l.given, id)
	}
}

// unsent unregisters request id and closes conn, over which it could not be sent. The reader
// of conn will notice that it is lost.
func (l *link) unsent(conn *wire.Conn, id uint32) {
	conn.Close()
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.waiting, id)
	if l.conn == conn {
		l.conn = nil
	}
}

// forsake removes a box without waiting for it: one whose Remove was given up before it was
// sent, or one that an interrupted Create may have made.
func (l *link) forsake(id string) {
	l.mu.Lock()
	up := l.conn != nil
	if !up {
		l.orphans = append(l.orphans, id)
	}
	l.mu.Unlock()
	if up {
		_ = l.tell(rpc.TypeRemove, rpc.Box{ID: id}) // if this is lost too, Boxes lists the box
	}
}

// give ends the wait for a connection. It returns false if the link no longer wants one.
func (l *link) give(conn *wire.Conn, err error) bool {
	l.mu.Lock()
	l.conn, l.final = conn, conn == nil
	if l.ctx.Err() != nil {
		l.conn, l.final = nil, true
	}
	if err != nil && l.err == nil {
		l.err = err
	}
	if l.conn != nil {
		l.err = nil
	}
	close(l.up)
	l.up = make(chan struct{})
	orphans := l.orphans
	if l.conn != nil {
		l.orphans = nil
	}
	wanted := l.conn != nil
	l.mu.Unlock()
	if wanted {
		for _, id := range orphans {
			_ = l.tell(rpc.TypeRemove, rpc.Box{ID: id}) // if this is lost too, Boxes lists the box
		}
	}
	return wanted
}

// redial tries to connect until it succeeds or the link is closed.
func (l *link) redial() (*wire.Conn, error) {
	if l.o.dial == nil {
		return nil, errLost
	}
	for pause := firstPause; ; pause = min(2*pause, lastPause) {
		if l.ctx.Err() != nil {
			return nil, l.ctx.Err()
		}
		conn, err := l.o.dial(l.ctx)
		if err == nil {
			return conn, nil
		}
		l.mu.Lock()
		l.err = err
		l.mu.Unlock()
		select {
		case <-time.After(pause):
		case <-l.ctx.Done():
		}
	}
}

// connection returns the current connection, or waits for the next one.
func (l *link) connection(ctx context.Context) (*wire.Conn, error) {
	var late <-chan time.Time
	for {
		l.mu.Lock()
		conn, up, final, err := l.conn, l.up, l.final, l.err
		l.mu.Unlock()
		switch {
		case conn != nil:
			return conn, nil
		case final:
			return nil, fmt.Errorf("%w: %w", engine.ErrNoLauncher, err)
		case late == nil:
			t := time.NewTimer(reconnectPatience)
			defer t.Stop()
			late = t.C
		}
		select {
		case <-up:
		case <-late:
			return nil, fmt.Errorf("%w: %w", engine.ErrNoLauncher, l.lastError())
		case <-ctx.Done():
			if err := l.lastError(); err != nil {
				return nil, fmt.Errorf("%w: %v", context.Cause(ctx), err)
			}
			return nil, context.Cause(ctx)
		}
	}
}

// lastError returns why there is no connection, nil before the first attempt has failed.
func (l *link) lastError() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// lostErrorLocked returns why a request has no reply.
func (l *link) lostErrorLocked() error {
	return fmt.Errorf("%w: %w: %v", engine.ErrNoLauncher, errLost, l.err)
}
