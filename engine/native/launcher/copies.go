package launcher

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/volumes"
)

// forgottenTime is how long a copy goes on without a request of its client.
const forgottenTime = 30 * time.Second

// maxCopies is how many copies are made at a time: each reads and writes as fast as the disk can.
const maxCopies = 4

// volumeCopies are the copies of volumes that are being made, or whose client has not asked for
// the result yet.
type volumeCopies struct {
	mu  sync.Mutex
	all map[string]*volumeCopy // by the name of the new volume
	// gone is the last client that is gone: a request of its that is still under way begins
	// no copy any more. The next client is served after that.
	gone *wire.Conn
}

type volumeCopy struct {
	from, to    string
	conn        *wire.Conn // to the client
	cancel      context.CancelCauseFunc
	forgotten   *time.Timer
	done, total atomic.Int64
	ended       chan struct{} // closed when err is known
	err         error
}

// copy begins a copy, or finds the one that an earlier request began, and waits for it a moment.
func (s *storage) copy(conn *wire.Conn, m rpc.CopyVolume) (rpc.VolumeCopy, error) {
	c, err := s.copyFor(conn, m)
	if err != nil {
		return rpc.VolumeCopy{}, err
	}
	patience := time.NewTimer(rpc.CopyPatience)
	defer patience.Stop()
	select {
	case <-patience.C:
		c.forgotten.Reset(forgottenTime)
		return rpc.VolumeCopy{Done: c.done.Load(), Total: c.total.Load()}, nil
	case <-c.ended:
	}
	s.copies.forget(c)
	if c.err != nil && !errors.Is(c.err, volumes.ErrExists) { // its answer may have been lost
		return rpc.VolumeCopy{}, volumeError(m.From, c.err)
	}
	return rpc.VolumeCopy{Complete: true}, nil
}

func (s *storage) copyFor(conn *wire.Conn, m rpc.CopyVolume) (*volumeCopy, error) {
	v := m.Volume
	s.copies.mu.Lock()
	defer s.copies.mu.Unlock()
	if c := s.copies.all[v.Name]; c != nil {
		if c.from != m.From || c.conn != conn {
			return nil, &engine.FieldError{Field: "volume", Value: spec.Quote(v.Name), Rule: "is being made by another request"}
		}
		c.forgotten.Reset(forgottenTime)
		return c, nil
	}
	if s.copies.gone == conn {
		return nil, errors.New("its client is gone")
	}
	if len(s.copies.all) >= maxCopies {
		return nil, &engine.FieldError{Field: "volume", Value: spec.Quote(v.Name), Rule: "has to wait until other copies are complete: try again"}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	c := &volumeCopy{from: m.From, to: v.Name, conn: conn, cancel: cancel, ended: make(chan struct{})}
	c.forgotten = time.AfterFunc(forgottenTime, func() {
		cancel(errors.New("no client waits for the copy"))
		<-c.ended
		s.copies.forget(c)
	})
	if s.copies.all == nil {
		s.copies.all = map[string]*volumeCopy{}
	}
	s.copies.all[v.Name] = c
	go func() {
		defer close(c.ended)
		s.enter(m.From)
		defer s.leave(m.From)
		s.enter(v.Name)
		defer s.leave(v.Name)
		c.err = s.store.Copy(ctx, m.From, v.Name, v.Bytes, v.Inodes, func(done, total int64) {
			c.done.Store(done)
			c.total.Store(total)
		})
	}()
	return c, nil
}

func (a *volumeCopies) forget(c *volumeCopy) {
	c.forgotten.Stop()
	c.cancel(nil)
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.all[c.to] == c {
		delete(a.all, c.to)
	}
}

// giveUp ends the copies for which match returns true, and waits until nothing is left of them.
func (a *volumeCopies) giveUp(match func(*volumeCopy) bool, why string) {
	a.mu.Lock()
	var list []*volumeCopy
	for _, c := range a.all {
		if match(c) {
			list = append(list, c)
		}
	}
	a.mu.Unlock()
	for _, c := range list {
		c.cancel(errors.New(why))
		<-c.ended
		a.forget(c)
	}
}

// forsakeCopies gives up the copies of a client that is gone.
func (s *storage) forsakeCopies(conn *wire.Conn) {
	if s != nil {
		s.copies.mu.Lock()
		s.copies.gone = conn
		s.copies.mu.Unlock()
		s.copies.giveUp(func(c *volumeCopy) bool { return c.conn == conn }, "its client is gone")
	}
}
