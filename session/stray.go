package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// stray removes a box that no record knows. If the records are lost, it first asks the box
// for its session.
func (r *recovery) stray(ctx context.Context, id string, lost bool) error {
	if lost {
		box, err := r.m.engine.Adopt(ctx, id, engine.Spec{})
		switch {
		case err == nil && r.noteFound(box):
			return nil
		case err == nil:
			r.m.counters.discarded.Add(1)
			r.m.removeLater(box)
			return nil
		case errors.Is(err, engine.ErrNoLauncher) || ctx.Err() != nil || isShortage(err):
			return fmt.Errorf("taking over box %q: %w", id, err)
		}
	}
	r.m.log.Info("removing a box without an owner", "box", id)
	r.m.counters.discarded.Add(1)
	r.m.discardLater(id)
	return nil
}

// noteFound keeps box if its label says that it is the newest box of a session without a
// record, and reports whether it did.
func (r *recovery) noteFound(box engine.LiveBox) bool {
	var rec sessionRecord
	has := box.Spec()
	if json.Unmarshal([]byte(has.Labels[label]), &rec) != nil {
		return false
	}
	rec.State, rec.Box = Running, box.ID()
	rec.Resolved.Take(has)
	rec.fillIn()
	rec.builtAs(has)
	if rec.Generation < 1 || rec.validate() != nil {
		return false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.m.mu.Lock()
	taken := r.m.sessions[rec.key()] != nil
	r.m.mu.Unlock()
	other, double := r.found[rec.key()]
	if taken || (double && other.record.Generation >= rec.Generation) {
		return false
	}
	if double {
		r.m.removeLater(other.box)
	}
	r.found[rec.key()] = found{rec, box}
	return true
}

// claimFound restores the session of a box that was found without a record.
func (r *recovery) claimFound(f found) {
	if f.record.Sensitive == nil { // its label is as old as its box
		f.record.Sensitive = &spec.Sensitive{Since: time.Now().Round(0), Reason: lostRecord}
	}
	s := r.restore(f.record)
	known := map[string]bool{}
	for _, p := range s.processes {
		known[p.record.Key] = true
	}
	for _, live := range f.box.Managed() {
		if known[live.Key()] {
			continue
		}
		id := processID(live.Key())
		if s.processes[id] != nil {
			id = live.Key()
		}
		p := restoreProcess(s, processRecord{
			Tenant: s.key.Tenant, Session: s.key.ID, ID: id, Key: live.Key(), Box: f.box.ID(), State: ProcessRunning,
			TTY: live.Stdio().Stderr == nil, StartedAt: time.Now().Round(0),
		})
		s.processes[id] = p
	}
	r.m.report(s.key, "", "session was recovered from its box "+f.box.ID())
	s.settle(f.box, nil)
}
