package session

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
)

// session goes on with the session of a record. An error is one of the engine, which
// means that Open has to be tried again.
func (r *recovery) session(ctx context.Context, rec sessionRecord) error {
	m := r.m
	if rec.State == Creating && rec.Generation == 1 {
		return r.giveUp(rec) // nobody has seen it
	}
	s := r.restore(rec)
	exists := r.boxes[rec.Box]
	var box engine.LiveBox
	var err error
	switch {
	case rec.State == Stopping:
		return r.goOnRemoving(s)
	case rec.State == Running && exists:
		if box, err = r.adopt(ctx, s); err != nil {
			return err
		}
	case rec.State == Running:
		s.fail("its box is gone, as after a restart of the host")
	case rec.State == Creating:
		s.fail("building a new box was interrupted")
	}
	if box == nil && exists {
		m.discardLater(rec.Box)
	}
	return r.settle(s, box, &rec)
}

// fail is for a session that nobody else uses yet.
func (s *session) fail(reason string) { s.state, s.reason = Failed, reason }

// giveUp removes what there is of a session that was never seen.
func (r *recovery) giveUp(rec sessionRecord) error {
	if r.boxes[rec.Box] {
		r.m.counters.discarded.Add(1)
		r.m.spawn(func() { // without a record it is a stray one to the next opening
			r.m.discard(rec.Box)
			r.m.sweepTrash() // where its workspace may be, which it could still write to
		})
	}
	switch {
	case rec.Resolved.Workspace != "":
	case rec.Fresh:
		if err := r.m.workspaces.Trash(rec.Tenant, rec.ID); err != nil {
			r.m.report(rec.key(), "", "its workspace is left to the next session of its id: "+err.Error())
		}
	default: // one from before a lost database stays
		r.m.workspaces.DropEmpty(rec.Tenant, rec.ID)
	}
	if name := volumeOf(rec.Resolved); name != "" && r.m.options.Storage != nil && !r.m.volumes.isKept(name) {
		r.m.removeVolumeLater(name, rec.Box)
	}
	if err := r.m.store.write(change{sessionsBucket, sessionKey(rec.key()), nil}); err != nil {
		return err
	}
	_ = r.m.audit(system, rec.key(), audit.Entry{Action: "create", Box: rec.Box, Decision: audit.Failed,
		Reason: "boxd ended before it was known to be complete"}) // reported there
	return nil
}

// goOnRemoving goes on with the removal of a session in the background.
func (r *recovery) goOnRemoving(s *session) error {
	s.removing = true
	s.cancel()
	var changes []change
	for _, p := range s.processes {
		if p.record.State.Ended() {
			continue
		}
		seen := p.record.State != ProcessStarting
		changes = append(changes, p.vanish()) // it goes with its box
		if seen {
			p.tell(p.record)
		}
	}
	if len(changes) > 0 {
		if err := r.m.store.write(changes...); err != nil {
			return err
		}
	}
	reason := s.reason
	r.m.spawn(func() { s.teardown(removal{caller: system, reason: reason}) })
	return nil
}

// adopt takes over the box of s; nil if that is not possible, s has failed then.
func (r *recovery) adopt(ctx context.Context, s *session) (engine.LiveBox, error) {
	box, err := r.m.engine.Adopt(ctx, s.boxID, engine.Spec{})
	if err != nil && !errors.Is(err, engine.ErrBoxLost) && ctx.Err() == nil {
		box, err = r.m.engine.Adopt(ctx, s.boxID, engine.Spec{}) // it is not given up lightly
	}
	switch {
	case err == nil:
		s.correct(box.Spec())
		if _, err := r.m.policy.RecheckMounts(s.key.Tenant, s.resolved); err != nil {
			r.m.report(s.key, "", "its box keeps, as long as it lives, what is not allowed any more: "+err.Error())
		}
		return box, nil
	case errors.Is(err, engine.ErrNoLauncher) || ctx.Err() != nil || isShortage(err):
		return nil, fmt.Errorf("taking over the box of session %q: %w", s.key.ID, err)
	case errors.Is(err, engine.ErrBoxLost):
		s.fail("PID 1 of box " + s.boxID + " is gone")
	default:
		s.fail("taking over its box: " + err.Error())
	}
	return nil, nil
}

// isShortage reports whether err says more about this process or the host than about
// the box, which must not die of it.
func isShortage(err error) bool {
	for _, errno := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// correct believes the box about what can change while it lives: the last manager may
// have ended between a change and its record.
func (s *session) correct(spec engine.Spec) {
	if spec.ID != s.boxID {
		return // an engine that does not tell
	}
	s.resolved.Spec.Mounts, s.resolved.Spec.Limits = spec.Mounts, spec.Limits
	s.release()
	s.release = s.m.ledger.Adopt(s.key.Tenant, countable(boxUse(spec)))
}
