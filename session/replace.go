package session

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// replace builds a new box, with the same workspace, for a session whose box is lost or
// stopped. It makes the change of mounts that a asks for too. The caller holds the op.
func (s *session) replace(ctx context.Context, c Caller, a *asked, change mountDiff) (*use, error) {
	if ctx.Err() != nil { // for example because the session was stopped
		return nil, context.Cause(ctx)
	}
	if err := s.m.throttle.Admit(s.key.Tenant, c.Limits, policy.CreateRate); err != nil {
		return nil, err
	}
	s.mu.Lock()
	box := s.box
	s.mu.Unlock()
	if box != nil {
		s.markLost(box) // does nothing if that was noticed before
	}
	if err := s.m.audit(c, s.key, audit.Entry{Action: "recreate", Decision: audit.Allow, Reason: "its box is gone"}); err != nil {
		return nil, err
	}
	undo := func() {}
	var err error
	s.mu.Lock()
	retained, mounts := s.record.Retained != nil, change.attach
	if retained { // it has no volumes any more
		mounts = change.apply(s.record.Resolved).Mounts
	}
	s.mu.Unlock()
	if retained {
		undo, err = s.revive()
		if err == nil { // with the same ports, unless others have them
			forget := undo
			undo = func() { s.unpublishPorts("the session could not be revived"); forget() }
			s.republishPorts()
		}
	}
	if err == nil {
		var asked []spec.VolumeWish
		if a != nil {
			asked = a.request.Volumes
		}
		err = s.takeVolumes(ctx, c, "volumes", asked, mounts)
	}
	if err == nil {
		err = s.tryReplace(ctx, c, a, change)
	}
	if err != nil && undo != nil {
		undo()
	}
	s.settleVolumes()
	if err != nil {
		err = s.removedMeanwhile(err)
		s.m.noteFailure(c, s.key, "recreate", err)
		return nil, err
	}
	s.m.counters.recreated.Add(1)
	s.mu.Lock()
	details := s.builtDetailsLocked()
	s.mu.Unlock()
	_ = s.m.audit(c, s.key, audit.Entry{Action: "recreate", Decision: audit.Done, Details: details}) // the box exists even if this fails
	s.reportMounts(c, change)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing {
		return nil, errRemoved
	}
	u := s.useLocked()
	u.recreated = true
	return u, nil
}

func (s *session) tryReplace(ctx context.Context, c Caller, a *asked, change mountDiff) error {
	s.mu.Lock()
	old := s.record.Resolved
	s.mu.Unlock()
	// The configuration may have changed since this was allowed.
	want, err := s.m.policy.RecheckMounts(s.key.Tenant, change.apply(old))
	if err != nil {
		return err
	}
	s.m.avoidLinks(s.key.Tenant, want.Mounts)
	if err := s.m.policy.RecheckImage(s.key.Tenant, want); err != nil {
		return err
	}
	if err := s.renewImage(ctx, c); err != nil {
		return s.noteImage(err)
	}
	if err := s.makeSensitive(c, want.Mounts, a.asksSensitive()); err != nil {
		return err
	}
	if err := s.clearBox(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	s.record.Resolved, s.record.Attaching = want, nil
	s.mu.Unlock()
	err = s.build(ctx, c, EventRecreated)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	s.record.Resolved = old
	if s.removing {
		s.record.State = Stopping // the removal has set the reason
	} else {
		s.record.State, s.record.Reason = Failed, "building a new box: "+err.Error()
	}
	write := s.m.store.enqueue(s.putLocked()...)
	s.mu.Unlock()
	if e := write.wait(); e != nil {
		err = errors.Join(err, e)
	}
	s.arm()
	return err
}

// clearBox ends the managed processes of the last box, waits until that is recorded, and
// removes the remains of the box. It can be called again after a failure. The caller holds the
// op, and the state of the session keeps others from using the box.
func (s *session) clearBox(ctx context.Context) error {
	if !isDone(s.settled) { // the box was not taken over
		if err := s.settleToEnd(ctx); err != nil {
			return err
		}
		close(s.settled)
	}
	s.mu.Lock()
	box, id, list := s.box, s.record.Box, s.processesLocked()
	s.box = nil // Remove releases it even if it fails; Discard removes the rest
	s.noteStandstillLocked(false)
	s.closeNetworkLocked()
	s.mu.Unlock()
	if box != nil {
		s.count(box)
		endProcesses(ctx, list)
	}
	var err error
	if box != nil {
		err = box.Remove(ctx)
	} else {
		err = s.m.engine.Discard(ctx, id)
	}
	if err != nil {
		return fmt.Errorf("removing the old box: %w", causeOf(ctx, err))
	}
	for _, p := range list {
		select {
		case <-p.done:
		case <-ctx.Done():
			return fmt.Errorf("waiting for process %q of the old box: %w", p.id, context.Cause(ctx))
		}
	}
	return nil
}

// settleToEnd settles what an earlier manager left of the processes of a box that is to be
// removed. A box in which one may run is taken over: only then is it known what that has used.
func (s *session) settleToEnd(ctx context.Context) error {
	s.mu.Lock()
	rec, running := s.recordLocked(), false
	for _, p := range s.processes {
		running = running || !p.record.State.Ended()
	}
	s.mu.Unlock()
	if running {
		ctx, cancel := context.WithTimeout(ctx, endTime)
		defer cancel()
		box, err := s.m.engine.Adopt(ctx, rec.Box, engine.Spec{})
		switch {
		case err == nil:
			s.settle(box, rec)
			return nil
		case errors.Is(err, engine.ErrNoLauncher) || isShortage(err):
			return fmt.Errorf("taking over the box: %w", err)
		}
	}
	s.markProcessesLost()
	return nil
}

// endTime bounds how long the removal of a box waits for the ends of its processes, and before
// that for taking over the box. Only a subverted agent, and a process that hangs in the kernel,
// take longer than milliseconds.
const endTime = 2 * time.Second

// endProcesses kills processes whose box is to be removed, and waits until their ends are
// recorded: the figures of what they have used go with the box.
func endProcesses(ctx context.Context, list []*Process) {
	var wg sync.WaitGroup
	for _, p := range list {
		if isDone(p.done) {
			continue
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, endTime)
			defer cancel()
			select {
			case <-p.up:
			case <-ctx.Done():
				return
			}
			p.s.mu.Lock()
			live := p.live
			p.cleared = live != nil && !isDone(live.Done())
			kill := p.cleared
			p.s.mu.Unlock()
			if kill {
				_ = live.Control().Kill(ctx) // the removal of the box ends it in any case
			}
			select {
			case <-p.done:
			case <-ctx.Done():
			}
		})
	}
	wg.Wait()
}
