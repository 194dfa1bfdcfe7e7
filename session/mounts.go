package session

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/policy"
)

// mountDiff is a change of the mounts of a session other than its workspace.
type mountDiff struct {
	detach []engine.Mount // existing ones
	attach []engine.Mount
}

func (d mountDiff) empty() bool { return len(d.detach) == 0 && len(d.attach) == 0 }

// mountChange returns the difference between the mounts and volumes that a asks for and those
// of have; those that a does not name stay. It decides by the profile of the session, not by the profile of the
// request.
func (m *Manager) mountChange(key Key, have policy.Resolved, a *asked) (mountDiff, []policy.Decision, error) {
	if a == nil || a.request.Mounts == nil && a.request.Volumes == nil {
		return mountDiff{}, nil, nil
	}
	is := extraMounts(have)
	named := namedMounts(is)
	others := without(is, named)
	var decisions, more []policy.Decision
	var err error
	if a.request.Mounts != nil {
		others, decisions, err = m.policy.MountsFor(key.Tenant, have, a.request.Mounts)
	}
	if err == nil && a.request.Volumes != nil {
		named, more, err = m.policy.VolumesFor(key.Tenant, "volumes", have, a.request.Volumes)
		decisions = append(decisions, more...)
	}
	want := slices.Concat(others, named)
	if err == nil {
		err = engine.Spec{Mounts: want}.Validate()
	}
	if err != nil {
		return mountDiff{}, decisions, err
	}
	return mountDiff{detach: without(is, want), attach: without(want, is)}, decisions, nil
}

func extraMounts(r policy.Resolved) []engine.Mount {
	return slices.DeleteFunc(slices.Clone(r.Mounts), func(m engine.Mount) bool {
		return m.Target == r.Target()
	})
}

// without returns the elements of list that are not in other. How a source is opened makes no
// difference to a mount that is there.
func without(list, other []engine.Mount) []engine.Mount {
	return slices.DeleteFunc(slices.Clone(list), func(m engine.Mount) bool {
		return slices.ContainsFunc(other, func(o engine.Mount) bool {
			o.NoLinks = m.NoLinks
			return o == m
		})
	})
}

// apply returns r with the mounts changed, and leaves r as it is.
func (d mountDiff) apply(r policy.Resolved) policy.Resolved {
	if !d.empty() {
		r.Mounts = append(without(r.Mounts, d.detach), d.attach...)
	}
	return r
}

func (d mountDiff) engineChange() engine.Change {
	c := engine.Change{Attach: d.attach}
	for _, m := range d.detach {
		c.Detach = append(c.Detach, m.Target)
	}
	return c
}

func (d mountDiff) reverse() mountDiff { return mountDiff{detach: d.attach, attach: d.detach} }

// reportMounts publishes and audits a change of mounts that was made.
func (s *session) reportMounts(c Caller, d mountDiff) {
	for _, m := range d.detach {
		s.publish(EventDetached, c, "", map[string]any{"target": m.Target})
		_ = s.m.audit(c, s.key, audit.Entry{Action: "detach", Decision: audit.Done, Details: map[string]any{"target": m.Target}}) // reports its error
	}
	for _, m := range d.attach {
		details := map[string]any{"source": m.Source, "target": m.Target, "read_only": m.ReadOnly}
		if r, ok := s.m.named.record(m.Volume); ok {
			details["volume"] = r.Name
		}
		s.publish(EventAttached, c, "", details)
		_ = s.m.audit(c, s.key, audit.Entry{Action: "attach", Decision: audit.Done, Details: details}) // reports its error
	}
}

// changeTimeout bounds a change of a box including its undoing; both take milliseconds.
const changeTimeout = 30 * time.Second

// changeBox changes the running box, and then the session by alter, which must be quick and
// is called with s.mu held. If that cannot be recorded, it applies undo to the box. An
// empty change is not sent to the engine. errAgain means that the box was lost. The caller
// holds the op.
//
// Once begun, the change is completed even if ctx ends: nobody could tell whether an
// abandoned engine has changed the box.
func (s *session) changeBox(ctx context.Context, change, undo engine.Change, alter func(policy.Resolved) policy.Resolved) error {
	s.mu.Lock()
	box := s.box
	s.mu.Unlock()
	changesBox := change.Limits != nil || len(change.Attach) > 0 || len(change.Detach) > 0
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer cancel()
	s.mu.Lock()
	before := s.record.Attaching // of a change of which it is not known whether it was made
	s.mu.Unlock()
	if named := namedMounts(change.Attach); len(named) > 0 {
		s.mu.Lock()
		s.record.Attaching = slices.Concat(before, named)
		write := s.m.store.enqueue(s.putLocked()...)
		s.mu.Unlock()
		if err := write.wait(); err != nil {
			s.mu.Lock()
			s.record.Attaching = before
			s.mu.Unlock()
			return err
		}
	}
	if changesBox {
		err := box.Update(ctx, change)
		if errors.Is(err, engine.ErrBoxLost) && isDone(box.Done()) {
			s.forgetAttaching()
			return errAgain
		}
		if err != nil {
			// Without the launcher's answer it may still make the change.
			if ctx.Err() == nil && !errors.Is(err, engine.ErrNoLauncher) {
				s.keepToBox(box, before)
			}
			return s.m.explainLost(ctx, change.Attach, fmt.Errorf("changing the box: %w", causeOf(ctx, err)))
		}
	}
	s.mu.Lock()
	attaching, old, life := s.record.Attaching, s.record.Resolved, s.lifeEnd
	s.record.Resolved, s.record.Attaching = alter(old), before
	write := s.m.store.enqueue(s.putLocked()...)
	s.mu.Unlock()
	err := write.wait()
	if err == nil {
		return nil
	}
	s.mu.Lock()
	s.record.Resolved, s.record.Attaching, s.lifeEnd = old, attaching, life
	s.mu.Unlock()
	if changesBox {
		if e := box.Update(ctx, undo); e != nil {
			s.keepToBox(box, before)
			return errors.Join(err, fmt.Errorf("undoing it: %w", e))
		}
	}
	s.mu.Lock()
	s.record.Attaching = before
	undone := s.m.store.enqueue(s.putLocked()...) // a record written meanwhile may contain the change
	s.mu.Unlock()
	_ = undone.wait() // if this cannot be written, the change was not written either
	return err
}

// forgetAttaching records that the box, which has ended, gets nothing any more.
func (s *session) forgetAttaching() {
	s.mu.Lock()
	if s.record.Attaching == nil {
		s.mu.Unlock()
		return
	}
	s.record.Attaching = nil
	write := s.m.store.enqueue(s.putLocked()...)
	s.mu.Unlock()
	_ = write.wait() // a successor finds that the box is gone
}

// keepToBox replaces the session's mounts by those of its box: a failed change may have
// detached some, and one whose undoing failed has attached some. attaching remain uncertain.
func (s *session) keepToBox(box engine.LiveBox, attaching []engine.Mount) {
	has := box.Spec()
	s.mu.Lock()
	if has.ID != s.record.Box { // an engine may not report its mounts
		s.mu.Unlock()
		return
	}
	s.record.Attaching = attaching
	if slices.Equal(has.Mounts, s.record.Resolved.Mounts) {
		s.mu.Unlock()
		return
	}
	s.record.Resolved.Mounts = has.Mounts
	write := s.m.store.enqueue(s.putLocked()...)
	s.mu.Unlock()
	if err := write.wait(); err != nil { // a successor asks the box
		s.m.report(s.key, "", err.Error())
	}
}
