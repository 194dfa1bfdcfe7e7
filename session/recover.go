package session

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// recovery is what is found at Open.
type recovery struct {
	m     *Manager
	boxes map[string]bool // ids of those that exist
	// processes are their records. What is of no session is dropped.
	processes map[Key][]processRecord

	mu    sync.Mutex
	found map[Key]found // sessions without a record, by their boxes
}

// found is a box that says whose it is.
type found struct {
	record sessionRecord
	box    engine.LiveBox
}

// recover takes over what the last manager left.
func (m *Manager) recover(ctx context.Context, got loaded) error {
	ids, err := m.engine.Boxes(ctx)
	if err != nil {
		return fmt.Errorf("listing boxes: %w", err)
	}
	r := &recovery{m: m, boxes: map[string]bool{}, processes: map[Key][]processRecord{}, found: map[Key]found{}}
	for _, id := range ids {
		r.boxes[id] = true
	}
	if got.damage != nil {
		m.report(Key{}, "", fmt.Sprintf("session database was damaged (%v): kept as %s, sessions are searched for by their boxes", got.damage, got.aside))
	}
	for _, p := range got.processes {
		r.processes[p.key()] = append(r.processes[p.key()], p)
	}
	owned := map[string]bool{}
	for _, s := range got.sessions {
		owned[s.Box] = true
	}
	err = each(got.sessions, func(s sessionRecord) error { return r.session(ctx, s) })
	if err != nil {
		return err
	}
	strays := slices.DeleteFunc(ids, func(id string) bool { return owned[id] })
	err = each(strays, func(id string) error { return r.stray(ctx, id, got.fresh) })
	if err != nil {
		return err
	}
	for _, f := range r.found {
		if err := r.claimFound(f); err != nil {
			return err
		}
	}
	return r.conclude(got.fresh)
}

// conclude forgets the processes of sessions that are not there, and notes that boxes
// were searched for.
func (r *recovery) conclude(searched bool) error {
	var changes []change
	if searched {
		changes = append(changes, change{metaBucket, searchKey, nil})
	}
	for key, list := range r.processes {
		if _, err := r.m.find(key); err == nil {
			continue
		}
		for _, p := range list {
			changes = append(changes, change{processBucket, processKey(key, p.ID), nil})
		}
	}
	if len(changes) == 0 {
		return nil
	}
	return r.m.store.write(changes...)
}

// restore makes the session of a record and its processes, without the box, and adds it to
// the registry.
func (r *recovery) restore(rec sessionRecord) *session {
	s := newSession(r.m, rec.key())
	s.state, s.reason, s.generation, s.boxID = rec.State, rec.Reason, rec.Generation, rec.Box
	s.resolved, s.createdAt = rec.Resolved, rec.CreatedAt
	s.release = r.m.ledger.Adopt(rec.Tenant, countable(boxUse(rec.Resolved.Spec)))
	// A clock that was set back makes the session look younger than it is: what was
	// left when the record was written bounds that. bornAt is where the age starts if
	// a lifetime is set later.
	age := max(0, time.Since(rec.CreatedAt))
	s.bornAt = r.m.now() - age
	left := rec.Resolved.MaxLifetime - age
	if rec.LifeLeft > 0 {
		left = min(left, rec.LifeLeft)
	}
	s.setLifeLocked(left) // nobody else knows s yet
	for _, p := range r.processes[s.key] {
		s.processes[p.ID] = restoreProcess(s, p)
	}
	r.m.mu.Lock()
	r.m.sessions[s.key] = s
	r.m.mu.Unlock()
	return s
}

// countable keeps a damaged figure from what cannot count it.
func countable(u policy.Use) policy.Use {
	if u.Memory < 0 {
		u.Memory = engine.Unlimited
	}
	if u.CPUs != u.CPUs || u.CPUs < 0 {
		u.CPUs = engine.Unlimited
	}
	return u
}

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
	if err := r.settle(s, box, encode(&rec)); err != nil {
		return err
	}
	if rec.State == Running && box == nil {
		s.tellLost(s.reason)
	}
	return nil
}

// fail is for a session that nobody else uses yet.
func (s *session) fail(reason string) { s.state, s.reason = Failed, reason }

// giveUp removes what there is of a session that was never seen.
func (r *recovery) giveUp(rec sessionRecord) error {
	if r.boxes[rec.Box] {
		r.m.counters.discarded.Add(1)
		r.m.discardLater(rec.Box) // without a record it is a stray one to the next opening
	}
	if rec.Resolved.Workspace == "" {
		r.m.workspaces.DropEmpty(rec.Tenant, rec.ID)
	}
	return r.m.store.write(change{sessionsBucket, sessionKey(rec.key()), nil})
}

// goOnRemoving goes on with the removal of a session in the background.
func (r *recovery) goOnRemoving(s *session) error {
	s.removing = true
	s.cancel()
	for _, p := range s.processes {
		if !p.record.State.Ended() { // it goes with its box
			p.record.State, p.record.Result = ProcessFailed, &engine.Result{Verdict: engine.BoxLost, ExitCode: -1}
			close(p.up)
			close(p.done)
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

// settle brings the records of s, which has the one written, and its processes up to
// date, and lets it go on. Without a change nothing is written: most sessions are as
// they were.
func (r *recovery) settle(s *session, box engine.LiveBox, written []byte) error {
	m := r.m
	begin, changes := s.settleProcesses(box)
	if put := s.recordLocked().put(); !bytes.Equal(put.value, written) {
		changes = append(changes, put)
	}
	if len(changes) > 0 {
		if err := m.store.write(changes...); err != nil {
			return err
		}
	}
	if box != nil {
		s.mu.Lock()
		s.box = box
		s.mu.Unlock()
		m.counters.adopted.Add(1)
		s.publish(EventAdopted, system, map[string]any{"generation": s.generation})
		m.spawn(func() { s.watch(box) })
	}
	for _, fn := range begin {
		m.spawn(fn)
	}
	s.arm()
	return nil
}
