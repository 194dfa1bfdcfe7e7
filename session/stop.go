package session

import (
	"context"
	"fmt"
	"time"

	"github.com/boxd/boxd/audit"
)

// closeTimeout bounds how long the stop of a process waits for its stdin to be closed,
// which happens only after it has read what was written before.
const closeTimeout = time.Second

// Stop closes stdin, sends SIGTERM, or the image's stop signal, to all processes of the tree, kills them after a grace
// period, and returns when the process has ended. If ctx ends before that, the stop
// continues in the background. Stopping an ended process is no error.
func (p *Process) Stop(ctx context.Context, c Caller, o StopOptions) error {
	s := p.s
	if o.Grace <= 0 {
		o.Grace = s.m.options.StopGrace
	}
	s.mu.Lock()
	first := !p.stopped && !p.ending && !p.record.State.Ended() // only the first request may use the reserve of the audit log
	s.mu.Unlock()
	if err := s.m.audit(c, s.key, audit.Entry{Action: "stop", Process: p.id, Decision: audit.Allow, Ends: first,
		Details: map[string]any{"grace": o.Grace.String()}}); err != nil {
		return err
	}
	if p.markStopped() && !s.m.spawn(func() { p.terminate(o.Grace) }) {
		return ErrClosed
	}
	select {
	case <-p.done:
		if err := p.noRestart("; not restarted: it was stopped"); err != nil {
			return err
		}
		if next := p.latest(); next != p { // it was restarted before that
			return next.Stop(ctx, c, o)
		}
		return nil
	case <-ctx.Done():
		return fmt.Errorf("stopping process %q (it continues): %w", p.id, context.Cause(ctx))
	case <-s.m.ctx.Done():
		return ErrClosed
	}
}

// markStopped records that p is to be stopped, and reports whether the caller is the first
// to request that. If the database cannot be written, p is stopped all the same; only a
// successor would not continue the stop.
func (p *Process) markStopped() (first bool) {
	s := p.s
	s.mu.Lock()
	if p.stopped || p.ending || p.record.State.Ended() {
		s.mu.Unlock()
		return false
	}
	p.stopped = true
	if p.record.State != ProcessRunning { // markRunning records it
		s.mu.Unlock()
		return true
	}
	p.record.State = ProcessStopping
	write := s.m.store.enqueue(p.record.put())
	s.mu.Unlock()
	if err := write.wait(); err != nil {
		s.m.report(s.key, p.id, "recording its stop: "+err.Error())
	}
	return true
}

// terminate ends p.
func (p *Process) terminate(grace time.Duration) {
	ctx := p.s.m.ctx
	select {
	case <-p.up:
	case <-ctx.Done():
		return
	}
	live := p.Live()
	if live == nil {
		return
	}
	if stdin := live.Stdio().Stdin; stdin != nil {
		closing, cancel := context.WithTimeout(ctx, closeTimeout)
		_ = stdin.Close(closing) // the next steps end the process in any case
		cancel()
	}
	p.s.mu.Lock()
	signal := p.s.record.Image.stopSignal()
	p.s.mu.Unlock()
	_ = live.Control().Terminate(ctx, signal) // as above
	timer := time.NewTimer(grace)
	defer timer.Stop()
	select {
	case <-live.Done():
		return
	case <-ctx.Done():
		return
	case <-timer.C:
	}
	p.s.m.retry(func(ctx context.Context) error {
		if isDone(live.Done()) {
			return nil
		}
		return live.Control().Kill(ctx)
	})
}

// Remove stops the process if it runs, and forgets it with its output.
func (p *Process) Remove(ctx context.Context, c Caller) error {
	s := p.s
	s.mu.Lock()
	first := s.processes[p.id] == p // as in Stop
	s.mu.Unlock()
	if err := s.m.audit(c, s.key, audit.Entry{Action: "process-remove", Process: p.id, Decision: audit.Allow, Ends: first}); err != nil {
		return err
	}
	if err := p.Stop(ctx, c, StopOptions{}); err != nil {
		return err
	}
	return p.latest().forget(ctx)
}
