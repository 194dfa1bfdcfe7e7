package session

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// session goes on with the session of a record. The box of one that ran is taken over
// once the manager is open.
func (r *recovery) session(rec sessionRecord) error {
	if rec.State == Creating && rec.Generation == 1 {
		return r.giveUp(rec) // nobody has seen it
	}
	s := r.restore(rec)
	exists := r.boxes[rec.Box]
	switch {
	case rec.State == Stopping:
		r.goOnRemoving(s)
		return nil
	case rec.State == Running && exists:
		s.settled = make(chan struct{})
		r.mu.Lock()
		r.left = append(r.left, s)
		r.mu.Unlock()
		return nil
	case rec.State == Running:
		s.fail("its box is gone, as after a restart of the host")
	case rec.State == Creating:
		s.fail("building a new box was interrupted")
	}
	if exists {
		r.m.discardLater(rec.Box)
	}
	s.settle(nil, &rec)
	return nil
}

// fail says that the session has no box.
func (s *session) fail(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state, s.reason = Failed, reason
}

// takeOverAll takes over the boxes of the sessions that ran, some at a time. What fails
// because of the launcher or of this host is tried again; a box is not given up for that.
func (m *Manager) takeOverAll(list []*session) {
	_ = each(list, func(s *session) error { // the function returns no error
		if s.takeOver(m.ctx) != nil {
			m.spawn(func() { m.retry(s.takeOver) })
		}
		return nil
	})
	if m.ctx.Err() == nil {
		st := m.Stats()
		details := map[string]any{"adopted": st.Adopted, "lost": st.BoxesLost}
		_ = m.audit(system, Key{}, audit.Entry{Action: "adopt", Decision: audit.Done, Details: details}) // reported there
	}
	close(m.adopted)
}

// attempt is one to take over a box.
type attempt struct {
	done chan struct{} // closed when err is known
	err  error
}

// takeOver makes sure that it is known what has become of the box of s, which an earlier
// manager has left. Whoever needs the session has this done for it alone, whatever there is
// of others. ctx bounds only the waiting.
func (s *session) takeOver(ctx context.Context) error {
	if isDone(s.settled) {
		return nil
	}
	s.mu.Lock()
	a := s.attempt
	mine := a == nil
	if mine {
		a = &attempt{done: make(chan struct{})}
		s.attempt = a
	}
	s.mu.Unlock()
	if mine && !s.m.spawn(func() { s.try(a) }) {
		return ErrClosed // as all others are told
	}
	select {
	case <-a.done:
		return a.err
	case <-ctx.Done():
		return fmt.Errorf("taking over the box of session %q: %w", s.key.ID, context.Cause(ctx))
	case <-s.m.ctx.Done():
		return ErrClosed
	}
}

// try makes attempt a. Nothing is wrong if the session is being removed: that needs none.
func (s *session) try(a *attempt) {
	ctx, cancel := context.WithTimeout(s.ctx, takeOverTimeout)
	defer cancel()
	err := s.begin(ctx)
	if err == nil {
		err = s.takeOverHeld(ctx)
		s.end()
	}
	if s.ctx.Err() != nil && s.m.ctx.Err() == nil {
		err = nil
	}
	s.mu.Lock()
	s.attempt = nil
	s.mu.Unlock()
	a.err = err
	close(a.done)
}

func (s *session) takeOverHeld(ctx context.Context) error {
	s.mu.Lock()
	rec, removing := s.recordLocked(), s.removing
	s.mu.Unlock()
	if removing || isDone(s.settled) {
		return nil
	}
	box, err := s.adopt(ctx)
	if err != nil {
		return err
	}
	if box == nil {
		s.m.discardLater(rec.Box)
	}
	s.settle(box, rec)
	close(s.settled)
	return nil
}

// takeOverTimeout bounds one attempt to take over a box.
const takeOverTimeout = 30 * time.Second

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
	if err := r.record(change{sessionsBucket, sessionKey(rec.key()), nil}); err != nil {
		return err
	}
	_ = r.m.audit(system, rec.key(), audit.Entry{Action: "create", Box: rec.Box, Decision: audit.Failed,
		Reason: "boxd ended before it was known to be complete"}) // reported there
	return nil
}

// goOnRemoving goes on with the removal of a session in the background.
func (r *recovery) goOnRemoving(s *session) {
	s.removing = true
	s.cancel()
	s.vanish()
	reason := s.reason
	r.m.spawn(func() { s.teardown(removal{caller: system, reason: reason}) })
}

// forgo gives up a box that was not taken over and is to be removed. The op is held.
func (s *session) forgo() {
	if !isDone(s.settled) {
		s.vanish()
		close(s.settled)
	}
}

// vanish marks the processes that run as gone with their box, whose records go with that
// of the session.
func (s *session) vanish() {
	var told []*Process
	var changes []change
	s.mu.Lock()
	for _, p := range s.processes {
		if p.record.State.Ended() {
			continue
		}
		seen := p.record.State != ProcessStarting
		changes = append(changes, p.vanish())
		if seen {
			told = append(told, p)
		}
	}
	s.running = 0
	noted := s.m.store.enqueue(changes...)
	s.mu.Unlock()
	if err := noted.wait(); err != nil {
		s.m.report(s.key, "", "recording the end of its processes: "+err.Error())
	}
	for _, p := range told {
		p.tell(p.record) // which changes no more
	}
}

// adopt takes over the box of s; nil if there is none any more, s has failed then.
func (s *session) adopt(ctx context.Context) (engine.LiveBox, error) {
	s.mu.Lock()
	id := s.boxID
	s.mu.Unlock()
	box, err := s.m.engine.Adopt(ctx, id, engine.Spec{})
	if err != nil && !errors.Is(err, engine.ErrBoxLost) && ctx.Err() == nil {
		box, err = s.m.engine.Adopt(ctx, id, engine.Spec{}) // it is not given up lightly
	}
	switch {
	case err == nil:
		if _, err := s.m.policy.RecheckMounts(s.key.Tenant, s.correct(box.Spec())); err != nil {
			s.m.report(s.key, "", "its box keeps, as long as it lives, what is not allowed any more: "+err.Error())
		}
		return box, nil
	case errors.Is(err, engine.ErrNoLauncher) || ctx.Err() != nil || isShortage(err):
		return nil, fmt.Errorf("taking over the box of session %q: %w", s.key.ID, err)
	case errors.Is(err, engine.ErrBoxLost):
		s.fail("PID 1 of box " + id + " is gone")
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
func (s *session) correct(has engine.Spec) policy.Resolved {
	var believed policy.Resolved
	believed.Take(has)
	counted := s.m.ledger.Adopt(s.key.Tenant, countable(boxUse(believed)))
	s.mu.Lock()
	if has.ID == s.boxID { // else an engine that does not tell
		s.resolved.Take(has)
		s.release, counted = counted, s.release
	}
	corrected := s.resolved
	s.mu.Unlock()
	counted()
	return corrected
}
