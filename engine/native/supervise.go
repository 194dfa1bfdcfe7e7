package native

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"golang.org/x/sys/unix"
)

// supervise waits for the end of a running command: exit, timeout, cancellation,
// output limit or the loss of the box, whichever comes first.
func (p *process) supervise(ctx context.Context) {
	defer p.box.running.Done()
	reason, status, exited := p.await(ctx)
	if reason == "" && status.Signaled() && status.Signal() == unix.SIGKILL && p.box.isEnding() {
		// The agent reported it before it was killed itself.
		reason, exited = engine.BoxLost, false
	}
	p.result.Receipt.Wall = time.Since(p.began)
	background := p.endTree(reason)
	clean := reason == "" && exited && status.Exited() && !background // nothing was killed, nothing is left
	if clean {
		p.box.slots.emptied(p.slot)
	}
	p.drain(reason)
	if reason == "" {
		reason = p.lateReason()
	}
	p.measure()
	if reason == "" && exited {
		p.askOutside(status)
	}
	p.judge(reason, status, exited, background)
	p.io.close()
	p.box.unregister(p)
	close(p.done)
	runtime.Gosched() // lets Wait return before the rest
	if clean && p.err == nil {
		p.box.slots.reuse(p.slot)
	} else {
		p.box.slots.release(p.slot)
	}
	p.box.warm.used(p, true)
}

// await returns when the first process has ended, with boxd's own reason for it
// ("" if it ended by itself) and its status if there is one. The timeout and its grace stand still while the
// box is paused; the grace of a cancellation does not, for its caller waits.
func (p *process) await(ctx context.Context) (reason engine.Verdict, status unix.WaitStatus, exited bool) {
	var timeout, grace, hurry, deadline <-chan time.Time
	var limit *runTimer // of timeout, and then of grace; nil without one
	_, _, pause := p.box.pauses.now()
	if p.cmd.Timeout > 0 {
		limit = newRunTimer(p.box.pauses, p.cmd.Timeout, p.began, p.pausedBefore)
		timeout = limit.C
	}
	defer func() {
		if limit != nil {
			limit.Stop()
		}
	}()
	canceled := ctx.Done()
	killNow := func(v engine.Verdict) {
		if reason == "" {
			reason = v
		}
		timeout, grace, hurry = nil, nil, nil
		if deadline == nil {
			deadline = time.After(emptyDeadline)
		}
		p.note(p.kill(unix.SIGKILL))
	}
	for {
		select {
		case status = <-p.exited:
			return reason, status, true
		case <-p.lost:
			select {
			case status = <-p.exited: // it ended before the box did
				return reason, status, true
			default:
			}
			return engine.BoxLost, 0, false
		case v := <-p.stop:
			killNow(v)
		case <-canceled:
			canceled = nil
			if p.cmd.CancelGrace == 0 || deadline != nil {
				killNow(engine.Canceled)
				break
			}
			if reason == "" {
				timeout, reason = nil, engine.Canceled
				p.note(p.kill(unix.SIGTERM))
			}
			t := time.NewTimer(p.cancelGrace())
			defer t.Stop()
			hurry = t.C
		case <-hurry:
			killNow(engine.Canceled)
		case <-timeout:
			timeout, reason = nil, engine.TimedOut
			p.note(p.kill(unix.SIGTERM))
			sum, _, _ := p.box.pauses.now()
			limit = newRunTimer(p.box.pauses, p.cmd.Grace, time.Now(), sum)
			grace = limit.C
		case <-pause:
			_, _, pause = p.box.pauses.now()
			limit.adapt()
		case <-grace:
			killNow(engine.TimedOut)
		case <-deadline:
			// The agent does not report a death that cgroup.events proves, or the
			// process hangs in the kernel. Either way no status will come.
			p.note(fmt.Errorf("waiting for killed command: no status in %v", emptyDeadline))
			return reason, 0, false
		}
	}
}

// endTree kills the processes that the command left running, unless it may leave them. It
// reports whether there were any.
func (p *process) endTree(reason engine.Verdict) bool {
	if reason == engine.BoxLost {
		return false
	}
	populated, err := p.slot.stats.Populated()
	if err != nil {
		p.note(err)
	}
	if !populated || p.cmd.KeepBackground && reason == "" {
		if populated {
			p.note(p.box.slots.leave(p.slot))
		}
		return populated
	}
	ctx, cancel := context.WithTimeout(context.Background(), emptyDeadline)
	defer cancel()
	if err := p.kill(unix.SIGKILL); err != nil {
		p.note(err)
		return true
	}
	p.note(p.slot.stats.WaitEmpty(ctx))
	return true
}

// lateReason returns a reason that came up after the command had ended by itself: its last
// output exceeded the limit and was dropped, which the result must say.
func (p *process) lateReason() engine.Verdict {
	select {
	case v := <-p.stop:
		return v
	default:
		return ""
	}
}

// drain waits, for a limited time, until all output has been read. Usually every writer is
// dead. But background processes may have been kept, and a hostile agent may have kept the
// command's descriptors.
func (p *process) drain(reason engine.Verdict) {
	if reason == engine.BoxLost {
		ctx, cancel := context.WithTimeout(context.Background(), cutDelay)
		defer cancel()
		_ = p.slot.stats.WaitEmpty(ctx) // Remove takes care of the rest
	}
	delay, end := cutDelay, p.endOutput
	if p.cmd.KeepBackground {
		delay, end = drainDelay, p.io.cut
	}
	ended := make(chan struct{})
	t := time.AfterFunc(delay, func() {
		defer close(ended)
		end()
	})
	p.io.copies.Wait()
	if !t.Stop() {
		<-ended
	}
	p.note(p.io.err)
}

// endOutput ends output that should have ended by itself.
func (p *process) endOutput() {
	if populated, err := p.slot.stats.Populated(); err != nil || populated {
		p.io.close()
		return
	}
	p.io.cut()
}

// measure reads what the command used.
func (p *process) measure() {
	r := &p.result.Receipt
	if s := p.io.stdout; s != nil {
		n := s.bytes.Load()
		r.StdoutBytes = &n
	}
	if s := p.io.stderr; s != nil {
		n := s.bytes.Load()
		r.StderrBytes = &n
	}
	p.readUse()
}

// judge determines why the command ended.
func (p *process) judge(reason engine.Verdict, status unix.WaitStatus, exited, background bool) {
	e := ending{reason: reason, status: status, exited: exited, background: background}
	switch reason {
	case engine.BoxLost:
		e.reason, e.limit = p.whyLost()
	case engine.TimedOut:
		e.limit = p.cmd.Timeout.String()
	case engine.OutputLimit:
		e.limit = spec.FormatSize(p.cmd.OutputLimit)
	}
	p.conclude(e)
}
