package langbot

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/boxd/boxd/langbot/protocol"
)

// Requests for a session or a command are answered in time, whatever hangs underneath: a system
// call, a launcher that does not respond, a disk that does not write. A client without an answer
// can only guess. LangBot waits 15 s for a session. It waits 300 s for a command, which may need
// all of its own timeout; so the limit covers the time until the command runs, and the time
// after its end.
const (
	sessionTime = 14 * time.Second
	execTime    = 25 * time.Second
	// lateTime is the part of that limit in which a cancelled action can still report what it was
	// waiting for.
	lateTime = 2 * time.Second
	// maxHung is how many actions may hang after they were answered.
	maxHung = 256
)

// errLate is the cause of the cancellation of an action that takes too long.
var errLate = errors.New("it took too long")

// inTime runs an action and returns its answer, or one in its place when limit has passed. The
// action may move that moment with k.clock, and may leave the answer for it in k.ran.
func (k *call) inTime(ctx context.Context, limit time.Duration, do func(context.Context) (any, error)) (any, error) {
	s := k.s
	if n := s.hung.Load(); n >= maxHung {
		return nil, protocol.Errorf(protocol.BackendUnavailable, "%d earlier requests still hang: boxd status shows where", n)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	k.clock = time.NewTimer(limit - lateTime)
	defer k.clock.Stop()
	done := make(chan func() (any, error), 1) // receives the answer, or what panics in its place
	begun := s.background(func(context.Context) {
		var answer func() (any, error)
		defer func() {
			if p := recover(); p != nil {
				text := fmt.Sprintf("%v\n%s", p, debug.Stack())
				answer = func() (any, error) { panic(text) } // which the door reports
			}
			cancel(nil)
			done <- answer
		}()
		out, err := do(ctx)
		answer = func() (any, error) { return out, err }
	})
	if !begun {
		cancel(nil)
		return nil, k.fail(ctx, errShutdown)
	}
	select {
	case answer := <-done:
		return answer()
	case <-k.clock.C:
	}
	if k.ran.Load() == nil { // no result would be lost
		cancel(errLate)
		grace := time.NewTimer(lateTime)
		defer grace.Stop()
		select {
		case answer := <-done:
			return answer()
		case <-grace.C:
		}
	}
	s.hung.Add(1)
	s.background(func(context.Context) {
		<-done
		s.hung.Add(-1)
	})
	ran := k.ran.Load()
	s.log.Error("an action hangs and was answered without its result", "action", k.action, "instance", k.at.Instance, "workspace", k.at.Workspace, "command ended", ran != nil)
	if stale := s.fence.Check(k.at); stale != nil {
		return nil, stale
	}
	if ran != nil {
		return *ran, nil
	}
	return nil, protocol.Errorf(protocol.BackendUnavailable, "%s did not end within %v: the launcher, a disk or the kernel hangs; boxd status may show where", k.action, limit)
}
