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

// resumeSession continues with the session of a record. If it was running, its box is taken
// over once the manager is open.
func (r *recovery) resumeSession(rec sessionRecord) error {
	if rec.State == Creating && rec.Generation == 1 {
		return r.giveUp(rec) // no client has seen it
	}
	s := r.restore(rec)
	exists := r.boxes[rec.Box]
	switch {
	case rec.State == Stopping:
		s.removing = true
		s.cancel()
		if exists {
			s.settled = make(chan struct{}) // clearBox ends its processes
		} else {
			s.markProcessesLost()
		}
		left := removal{caller: system, reason: s.record.Reason, expired: rec.Expired || rec.Retained != nil} // older builds had only Retained
		r.m.spawn(func() { s.teardown(left) })
		return nil
	case rec.State == Running && exists:
		s.settled = make(chan struct{})
		r.mu.Lock()
		r.left = append(r.left, s)
		r.mu.Unlock()
		return nil
	case rec.State == Running:
		s.setFailed("its box is gone, as after a restart of the host")
	case rec.State == Creating:
		s.setFailed("building a new box was interrupted")
	}
	if exists {
		s.discardHolding(rec.Box)
	}
	s.forgetAttaching()
	s.settleVolumes()
	s.settle(nil, &rec)
	return nil
}

// setFailed records in memory that the session has no box.
func (s *session) setFailed(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.record.State, s.record.Reason = Failed, reason
}

// takeOverAll takes over the boxes of the sessions that ran, several at a time. It retries
// what fails because of the launcher or the host, and gives up no box for that.
func (m *Manager) takeOverAll(list []*session) {
	_ = inParallel(list, func(s *session) error { // fn returns no error
		if s.takeOver(m.ctx) != nil {
			m.spawn(func() { m.retry(s.takeOver) })
		}
		return nil
	})
	if m.ctx.Err() == nil {
		st := m.Stats()
		details := map[string]any{"adopted": st.Adopted, "lost": st.BoxesLost}
		_ = m.audit(system, Key{}, audit.Entry{Action: "adopt", Decision: audit.Done, Details: details}) // reports its error
	}
	close(m.adopted)
}

// attempt is an attempt to take over a box.
type attempt struct {
	done chan struct{} // closed when err is known
	err  error
}

// takeOver makes sure that it is known what became of the box that an earlier manager left.
// A caller that needs the session waits for this session only, however many others there
// are. ctx bounds only the waiting.
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
	if mine && !s.m.spawn(func() { s.tryTakeOver(a) }) {
		return ErrClosed // as all other callers get
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

// tryTakeOver makes the attempt a. It succeeds without doing anything if the session is
// being removed.
func (s *session) tryTakeOver(a *attempt) {
	ctx, cancel := context.WithTimeout(s.ctx, takeOverTimeout)
	defer cancel()
	err := s.lockOp(ctx)
	if err == nil {
		err = s.takeOverHeld(ctx)
		s.unlockOp()
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
	box, err := s.adoptLeftBox(ctx)
	if err != nil {
		return err
	}
	if box == nil {
		s.discardHolding(rec.Box)
	}
	s.mu.Lock()
	s.record.Attaching = nil // the box has told what it has
	s.m.named.settle(s.key, s.record.Resolved.Mounts)
	s.mu.Unlock()
	if err := s.m.ratchetFound([]*session{s}); err != nil {
		s.m.report(s.key, "", err.Error()) // in memory it is sensitive, and settle writes its record again
	}
	if box != nil {
		s.adoptPause(box)
		s.reopenNetwork(ctx, box)
	}
	s.settle(box, rec)
	close(s.settled)
	return nil
}

// takeOverTimeout bounds one attempt to take over a box.
const takeOverTimeout = 30 * time.Second

// giveUp removes what is left of a session that no client has seen.
func (r *recovery) giveUp(rec sessionRecord) error {
	if r.boxes[rec.Box] {
		r.m.counters.discarded.Add(1)
		gone := r.m.named.hold(rec.key(), rec.Box, rec.Resolved.Mounts)
		r.m.spawn(func() { // if this does not finish, the next opening finds a stray box
			r.m.discard(rec.Box)
			gone()
			r.m.sweepTrash() // its workspace may be there, to which it could still write
		})
	}
	switch {
	case rec.Resolved.Workspace != "":
	case rec.Fresh:
		if err := r.m.workspaces.Trash(rec.Tenant, rec.ID); err != nil {
			r.m.report(rec.key(), "", "its workspace is left for the next session with its ID: "+err.Error())
		}
	default: // the content of one from before a lost database stays
		r.m.workspaces.DropEmpty(rec.Tenant, rec.ID)
	}
	r.m.dropNewVolume(volumeOf(rec.Resolved), rec.Box)
	if err := r.record(change{sessionsBucket, sessionKey(rec.key()), nil}); err != nil {
		return err
	}
	_ = r.m.audit(system, rec.key(), audit.Entry{Action: "create", Box: rec.Box, Decision: audit.Failed,
		Reason: "boxd ended before it was known to be complete"}) // reports its error
	return nil
}

// markProcessesLost marks the running processes as gone with their box. Their records are
// deleted with that of the session.
func (s *session) markProcessesLost() {
	var ended []*Process
	var changes []change
	s.mu.Lock()
	for _, p := range s.processes {
		if p.record.State.Ended() {
			continue
		}
		seen := p.record.State != ProcessStarting
		changes = append(changes, p.markLost())
		if seen {
			ended = append(ended, p)
		}
	}
	s.running = 0
	s.mu.Unlock()
	for _, p := range ended {
		p.remember(p.record) // before its record, so that a successor repeats it rather than leaves it out
		p.untold = s.m.announce(p.endingAs(p.record))
		changes = append(changes, p.untold.changes()...)
	}
	err := s.m.store.write(changes...)
	if err != nil {
		s.m.report(s.key, "", "recording the end of its processes: "+err.Error())
	}
	for _, p := range ended {
		if err != nil {
			s.m.spawn(p.recordLater)
		} else {
			p.noteTold()
		}
		s.m.publish(p.noteEnd(p.record)) // the record of an ended process no longer changes
	}
}

// adoptLeftBox takes over the box of s. It returns nil if the box is gone; the session has
// failed then.
func (s *session) adoptLeftBox(ctx context.Context) (engine.LiveBox, error) {
	s.mu.Lock()
	id := s.record.Box
	s.mu.Unlock()
	box, err := s.m.engine.Adopt(ctx, id, engine.Spec{})
	if err != nil && !errors.Is(err, engine.ErrBoxLost) && ctx.Err() == nil {
		box, err = s.m.engine.Adopt(ctx, id, engine.Spec{}) // one more attempt before giving the box up
	}
	switch {
	case err == nil:
		if _, err := s.m.policy.RecheckMounts(s.key.Tenant, s.correct(box.Spec())); err != nil {
			s.m.report(s.key, "", "its box keeps, until it ends, a mount that is not allowed any more: "+err.Error())
		}
		return box, nil
	case errors.Is(err, engine.ErrNoLauncher) || ctx.Err() != nil || isShortage(err):
		return nil, fmt.Errorf("taking over the box of session %q: %w", s.key.ID, err)
	case errors.Is(err, engine.ErrBoxLost):
		s.setFailed("PID 1 of box " + id + " is gone")
	default:
		s.setFailed("taking over its box: " + err.Error())
	}
	return nil, nil
}

// isShortage reports whether err is about this process or the host rather than the box,
// which must not be given up for it.
func isShortage(err error) bool {
	for _, errno := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS} {
		if errors.Is(err, errno) {
			return true
		}
	}
	return false
}

// correct takes from the box what can change while it lives: the last manager may have
// ended between a change and its record.
func (s *session) correct(has engine.Spec) policy.Resolved {
	var believed policy.Resolved
	believed.Take(has)
	counted := s.m.ledger.Adopt(s.key.Tenant, countable(boxUse(believed)))
	s.mu.Lock()
	if has.ID == s.record.Box { // an engine may not report a spec
		s.record.Resolved.Take(has)
		s.record.builtAs(has)
		s.release, counted = counted, s.release
	}
	corrected := s.record.Resolved
	s.mu.Unlock()
	counted()
	return corrected
}
