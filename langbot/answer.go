package langbot

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/boxd/boxd/langbot/protocol"
)

// A session and a command are answered in time, whatever hangs below: a create in the
// kernel, a launcher that does not answer, a disk that does not write. A client that hears
// nothing can only guess. LangBot waits 15 s for a session. It waits 300 s for a command,
// which may need all of its own timeout; so its time counts until the command runs, and
// again from its end.
const (
	sessionTime = 14 * time.Second
	execTime    = 25 * time.Second
	// lateTime is how long an action that was cancelled may take, of that time, to say what
	// it was waiting for.
	lateTime = 2 * time.Second
	// maxHung is how many actions that were answered for may still hang.
	maxHung = 256
)

// errLate is the cause of the cancellation of an action that takes too long.
var errLate = errors.New("it took too long")

// answer is what an action returns.
type answer struct {
	out      any
	err      error
	panicked string
}

func (a answer) get() (any, error) {
	if a.panicked != "" {
		panic(a.panicked) // which the door reports
	}
	return a.out, a.err
}

// inTime does an action and returns its answer, or one in its place after limit. An action
// can move that with k.clock, and leave in k.ran what to answer then.
func (k *call) inTime(ctx context.Context, limit time.Duration, do func(context.Context) (any, error)) (any, error) {
	s := k.s
	if n := s.hung.Load(); n >= maxHung {
		return nil, protocol.Errorf(protocol.BackendUnavailable, "%d earlier requests hang below boxd: boxd status says what does", n)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	k.clock = time.NewTimer(limit - lateTime)
	defer k.clock.Stop()
	done := make(chan answer, 1)
	begun := s.background(func(context.Context) {
		var a answer
		defer func() {
			if p := recover(); p != nil {
				a.panicked = fmt.Sprintf("%v\n%s", p, debug.Stack())
			}
			cancel(nil)
			done <- a
		}()
		a.out, a.err = do(ctx)
	})
	if !begun {
		cancel(nil)
		return nil, k.fail(ctx, errShutdown)
	}
	select {
	case a := <-done:
		return a.get()
	case <-k.clock.C:
	}
	if k.ran.Load() == nil { // nothing is lost by giving it up
		cancel(errLate)
		grace := time.NewTimer(lateTime)
		defer grace.Stop()
		select {
		case a := <-done:
			return a.get()
		case <-grace.C:
		}
	}
	s.hung.Add(1)
	s.background(func(context.Context) {
		<-done
		s.hung.Add(-1)
	})
	ran := k.ran.Load()
	s.log.Error("an action hangs and was answered for", "action", k.action, "instance", k.at.Instance, "workspace", k.at.Workspace, "command ended", ran != nil)
	if stale := s.fence.Check(k.at); stale != nil {
		return nil, stale
	}
	if ran != nil {
		return *ran, nil
	}
	return nil, protocol.Errorf(protocol.BackendUnavailable, "%s did not end within %v: the launcher, a disk or the kernel hangs, which boxd status may name", k.action, limit)
}
