package session

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/diskroom"
	"github.com/boxd/boxd/policy"
)

// recovery collects what Open finds.
type recovery struct {
	m     *Manager
	boxes map[string]bool // IDs of the existing boxes
	// processes are the process records. Those of no session are deleted.
	processes map[Key][]processRecord

	mu    sync.Mutex
	found map[Key]found // boxes of sessions without a record
	left  []*session    // sessions whose boxes are to be taken over
}

// found is a box without a record, and the session to which it says it belongs.
type found struct {
	record sessionRecord
	box    engine.LiveBox
}

// recover finds the sessions that the last manager left, and returns those whose boxes are
// to be taken over.
func (m *Manager) recover(ctx context.Context, got loaded) ([]*session, error) {
	for _, name := range got.kept {
		m.volumes.kept[name] = true
	}
	m.loadVolumes(got.volumes)
	m.loadSensitive(got)
	ids, err := m.engine.Boxes(ctx)
	if err != nil {
		return nil, fmt.Errorf("listing boxes: %w", err)
	}
	r := &recovery{m: m, boxes: map[string]bool{}, processes: map[Key][]processRecord{}, found: map[Key]found{}}
	for _, id := range ids {
		r.boxes[id] = true
	}
	if got.damage != nil {
		m.report(Key{}, "", fmt.Sprintf("session database was damaged (%v): kept as %s, and sessions are recovered from their boxes", got.damage, got.aside))
	}
	for _, p := range got.processes {
		r.processes[p.key()] = append(r.processes[p.key()], p)
	}
	owned := map[string]bool{}
	for _, s := range got.sessions {
		owned[s.Box] = true
	}
	if err := inParallel(got.sessions, r.resumeSession); err != nil {
		return nil, err
	}
	strays := slices.DeleteFunc(ids, func(id string) bool { return owned[id] })
	err = inParallel(strays, func(id string) error { return r.stray(ctx, id, got.fresh) })
	if err != nil {
		return nil, err
	}
	for _, f := range r.found {
		r.claimFound(f)
	}
	if err := m.ratchetFound(m.all("")); diskroom.IsFull(err) {
		m.report(Key{}, "", err.Error()) // a successor finds the same
	} else if err != nil {
		return nil, err
	}
	if err := r.orphanVolumes(ctx, got.fresh); err != nil {
		return nil, err
	}
	// An empty workspace of no session was made for one that had no record yet.
	known := map[string]bool{}
	for _, s := range m.all("") {
		known[m.workspaces.Path(s.key.Tenant, s.key.ID)] = true
	}
	if err := m.workspaces.DropUnknown(func(path string) bool { return known[path] }); err != nil {
		m.report(Key{}, "", err.Error()) // not fatal: it affects no session
	}
	return r.left, r.conclude(got.fresh)
}

// conclude forgets the processes of missing sessions, and records that the search for
// sessions by their boxes is complete.
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
	return r.record(changes...)
}

// record writes what recovery has found. On a full disk it only reports the error, because
// a successor finds the same.
func (r *recovery) record(changes ...change) error {
	err := r.m.store.write(changes...)
	if diskroom.IsFull(err) {
		r.m.report(Key{}, "", err.Error())
		return nil
	}
	return err
}

// restore adds the session of a record, with its processes but without its box, to the
// registry.
func (r *recovery) restore(rec sessionRecord) *session {
	if rec.Retained != nil && (rec.State == Stopped || rec.State == Failed) {
		s := r.m.retained(rec)
		r.m.mu.Lock()
		r.m.sessions[s.key] = s
		r.m.mu.Unlock()
		return s
	}
	s := newSession(r.m, rec.key())
	s.record = rec
	s.release = r.m.ledger.Adopt(rec.Tenant, countable(boxUse(rec.Resolved)))
	// A clock that was set back makes the session look younger than it is; the lifetime
	// that was left when the record was written bounds the error. bornAt is the start of
	// the lifetime if one is set later.
	age := max(0, time.Since(rec.CreatedAt))
	s.bornAt = r.m.now() - age
	left := rec.Resolved.MaxLifetime.D() - age
	if rec.LifeLeft > 0 {
		left = min(left, rec.LifeLeft)
	}
	s.setLifeLocked(left) // s is not shared yet
	s.made = true
	for _, p := range r.processes[s.key] {
		s.processes[p.ID] = restoreProcess(s, p)
		if !p.State.Ended() {
			s.running++
		}
	}
	r.m.named.settle(s.key, slices.Concat(rec.Resolved.Mounts, rec.Attaching))
	r.m.mu.Lock()
	r.m.sessions[s.key] = s
	r.m.mu.Unlock()
	return s
}

// countable replaces figures of a damaged record that the ledger cannot count.
func countable(u policy.Use) policy.Use {
	if u.Memory < 0 {
		u.Memory = engine.Unlimited
	}
	if u.CPUs != u.CPUs || u.CPUs < 0 {
		u.CPUs = engine.Unlimited
	}
	return u
}

// settle updates the records of s and of its processes, and lets the session continue. rec
// is the record as it was read, or nil if there is none. Nothing is written if nothing
// changed, as for most sessions.
func (s *session) settle(box engine.LiveBox, rec *sessionRecord) {
	m := s.m
	s.mu.Lock()
	begin, changes, ended := s.settleProcessesLocked(box)
	s.mu.Unlock()
	for _, p := range ended { // before their records, as in recordEnd; no call reaches s yet
		p.remember(p.record)
		p.untold = m.announce(p.endingAs(p.record))
		changes = append(changes, p.untold.changes()...)
	}
	s.mu.Lock()
	if put := s.recordLocked().put(); rec == nil || !bytes.Equal(put.value, encode(rec)) {
		changes = append(changes, put)
	}
	write := m.store.enqueue(changes...)
	s.mu.Unlock()
	if len(changes) > 0 {
		if err := write.wait(); err != nil {
			m.report(s.key, "", "recording what has become of its box: "+err.Error()) // a successor finds the same
			for _, p := range ended {
				m.spawn(p.recordLater)
			}
		} else {
			for _, p := range ended {
				p.noteTold()
			}
		}
	}
	if box != nil {
		until := m.history.Metered(s.key.Tenant, s.key.ID, box.ID())
		s.mu.Lock()
		s.box = box
		if until.IsZero() {
			until = s.record.BoxSince
		}
		if until.IsZero() { // of an older build
			until = time.Now()
		}
		s.beginMeterLocked(box, until)
		s.mu.Unlock()
		m.counters.adopted.Add(1)
		s.publish(EventAdopted, system, "", map[string]any{"generation": s.record.Generation})
		m.spawn(func() { s.watch(box) })
	}
	if rec != nil && rec.State == Running && box == nil {
		s.mu.Lock()
		lost := s.failedLocked()
		m.events.publish(lost)
		s.mu.Unlock()
		s.reportLost(lost)
	}
	for _, p := range ended {
		m.publish(p.noteEnd(p.record))
	}
	for _, fn := range begin {
		m.spawn(fn)
	}
	s.arm()
}
