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

// mountDiff is a change of the mounts of a session, the workspace not among them.
type mountDiff struct {
	detach []engine.Mount // that are there
	attach []engine.Mount
}

func (d mountDiff) empty() bool { return len(d.detach) == 0 && len(d.attach) == 0 }

// mountChange is what makes the mounts of a session of have those that a asks for;
// nothing if a names none. The session's own profile decides, whatever that of the
// request is.
func (m *Manager) mountChange(key Key, have policy.Resolved, a *asked) (mountDiff, []policy.Decision, error) {
	if a == nil || a.request.Mounts == nil {
		return mountDiff{}, nil, nil
	}
	want, decisions, err := m.policy.MountsFor(key.Tenant, have, a.request.Mounts)
	if err != nil {
		return mountDiff{}, decisions, err
	}
	is := extraMounts(have)
	return mountDiff{detach: without(is, want), attach: without(want, is)}, decisions, nil
}

func extraMounts(r policy.Resolved) []engine.Mount {
	return slices.DeleteFunc(slices.Clone(r.Mounts), func(m engine.Mount) bool {
		return m.Target == r.Target()
	})
}

// without returns the elements of list that are not in other.
func without(list, other []engine.Mount) []engine.Mount {
	return slices.DeleteFunc(slices.Clone(list), func(m engine.Mount) bool { return slices.Contains(other, m) })
}

func prepend(first engine.Mount, list []engine.Mount) []engine.Mount {
	return append([]engine.Mount{first}, list...)
}

// apply returns r with the mounts changed; r itself is left as it is.
func (d mountDiff) apply(r policy.Resolved) policy.Resolved {
	if !d.empty() {
		r.Mounts = append(without(r.Mounts, d.detach), d.attach...)
	}
	return r
}

func (d mountDiff) change() engine.Change {
	c := engine.Change{Attach: d.attach}
	for _, m := range d.detach {
		c.Detach = append(c.Detach, m.Target)
	}
	return c
}

func (d mountDiff) reverse() mountDiff { return mountDiff{detach: d.attach, attach: d.detach} }

// changeMounts changes the mounts of the running box. The op is held. errAgain: the
// box was lost.
func (s *session) changeMounts(ctx context.Context, c Caller, d mountDiff) error {
	if err := s.change(ctx, d.change(), d.reverse().change(), d.apply); err != nil {
		return s.m.fail(c, s.key, "mount", err)
	}
	s.tellMounts(c, d)
	return nil
}

// tellMounts tells everybody about a change that was made.
func (s *session) tellMounts(c Caller, d mountDiff) {
	for _, m := range d.detach {
		s.publish(EventDetached, c, map[string]any{"target": m.Target})
		_ = s.m.audit(c, s.key, audit.Entry{Action: "detach", Decision: audit.Done, Details: map[string]any{"target": m.Target}}) // done
	}
	for _, m := range d.attach {
		details := map[string]any{"source": m.Source, "target": m.Target, "read_only": m.ReadOnly}
		s.publish(EventAttached, c, details)
		_ = s.m.audit(c, s.key, audit.Entry{Action: "attach", Decision: audit.Done, Details: details}) // done
	}
}

// changeTimeout bounds a change of a box with its undoing; both take milliseconds.
const changeTimeout = 30 * time.Second

// change alters the running box, and then the session by alter, which must be quick
// and is called with s.mu held. If that cannot be recorded, undo is done to the box.
// A change that the engine must not be told of is empty. The op is held. What is begun is
// finished whether the caller is still there or not: an engine that is given up half-way
// has changed the box or has not.
func (s *session) change(ctx context.Context, change, undo engine.Change, alter func(policy.Resolved) policy.Resolved) error {
	s.mu.Lock()
	box := s.box
	s.mu.Unlock()
	told := change.Limits != nil || len(change.Attach) > 0 || len(change.Detach) > 0
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), changeTimeout)
	defer cancel()
	if told {
		err := box.Update(ctx, change)
		if errors.Is(err, engine.ErrBoxLost) && isDone(box.Done()) {
			return errAgain
		}
		if err != nil {
			s.keepToBox(box)
			return fmt.Errorf("changing the box: %w", causeOf(ctx, err))
		}
	}
	s.mu.Lock()
	old, life := s.resolved, s.lifeEnd
	s.resolved = alter(old)
	noted := s.m.store.enqueue(s.recordLocked().put())
	s.mu.Unlock()
	err := noted.wait()
	if err == nil {
		return nil
	}
	s.mu.Lock()
	s.resolved, s.lifeEnd = old, life
	undone := s.m.store.enqueue(s.recordLocked().put()) // what was written meanwhile had the change
	s.mu.Unlock()
	_ = undone.wait() // if nothing can be written, nothing was
	if told {
		if e := box.Update(ctx, undo); e != nil {
			err = errors.Join(err, fmt.Errorf("undoing it: %w", e))
		}
	}
	return err
}

// keepToBox makes the session's mounts those that its box has: a change that failed may
// have taken some away.
func (s *session) keepToBox(box engine.LiveBox) {
	has := box.Spec()
	s.mu.Lock()
	if has.ID != s.boxID || slices.Equal(has.Mounts, s.resolved.Mounts) { // or an engine that does not tell
		s.mu.Unlock()
		return
	}
	s.resolved.Mounts = has.Mounts
	noted := s.m.store.enqueue(s.recordLocked().put())
	s.mu.Unlock()
	if err := noted.wait(); err != nil { // the successor asks the box
		s.m.report(s.key, "", err.Error())
	}
}
