package session

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/policy"
)

// create makes the session and its first box. The op is held, and given back.
func (s *session) create(ctx context.Context, c Caller, a *asked) (*use, error) {
	defer s.end()
	ctx, stop := s.context(ctx)
	defer stop()
	s.mu.Lock()
	s.request, s.resolved = a.request, a.resolved
	s.setLifeLocked(a.resolved.MaxLifetime)
	s.mu.Unlock()

	err := s.tryCreate(ctx, c, a)
	if err != nil {
		err = s.removedMeanwhile(err)
		// Those who wait get the reason, unless it is this caller's own; then one of
		// them tries again.
		cause := err
		if ctx.Err() != nil {
			cause = nil
		}
		s.m.forget(s, cause)
		s.m.fail(c, s.key, "create", err)
		return nil, err
	}
	s.m.counters.created.Add(1)
	s.publish(EventCreated, c, nil)
	_ = s.m.audit(c, s.key, audit.Entry{Action: "create", Decision: audit.Done}) // it is allowed and done
	s.mu.Lock()
	u := s.useLocked()
	s.mu.Unlock()
	u.created = true
	return u, nil
}

// removedMeanwhile names the reason if it is the session's removal.
func (s *session) removedMeanwhile(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing {
		return fmt.Errorf("session %q was removed meanwhile: %w", s.key.ID, ErrState)
	}
	return err
}

func (s *session) tryCreate(ctx context.Context, c Caller, a *asked) (err error) {
	var undo cleanup.Stack
	defer undo.Undo(&err)
	release, err := s.m.ledger.Reserve(s.key.Tenant, boxUse(a.resolved.Spec))
	if err != nil {
		s.m.deny(c, s.key, "create", err)
		return err
	}
	s.mu.Lock()
	s.release = release
	s.mu.Unlock()
	undo.Push(func() error { s.releaseQuota(); return nil })
	decisions := a.resolved.Decisions
	if a.resolved.Persistent {
		decisions = append(slices.Clone(decisions), s.m.policy.MayStayIdle(a.resolved, 0))
	}
	if err := s.m.auditDecisions(c, s.key, decisions); err != nil {
		return err
	}
	if err := s.m.audit(c, s.key, audit.Entry{Action: "create", Decision: audit.Allow}); err != nil {
		return err
	}
	undo.Push(func() error {
		if err := s.m.store.write(change{sessionsBucket, sessionKey(s.key), nil}); err != nil {
			s.m.report(s.key, "", "undoing its creation: "+err.Error()) // the next opening does it
		}
		return nil
	})
	if a.resolved.Workspace == "" {
		undo.Push(func() error {
			s.m.workspaces.DropEmpty(s.key.Tenant, s.key.ID) // one from before a lost database stays
			return nil
		})
	}
	if err := s.build(ctx); err != nil {
		return err
	}
	undo.Release()
	return nil
}

// boxUse is what a session with a box of spec counts in quotas, as long as it exists.
func boxUse(spec engine.Spec) policy.Use {
	return policy.Use{Sessions: 1, Memory: spec.Limits.Memory, CPUs: spec.Limits.CPUs}
}

// releaseQuota gives back all that the session has reserved.
func (s *session) releaseQuota() {
	s.mu.Lock()
	release := s.release
	s.release = nil
	s.mu.Unlock()
	if release != nil {
		release()
	}
	s.measuring.Lock()
	defer s.measuring.Unlock()
	if s.unmeasure != nil {
		s.unmeasure()
		s.unmeasure = nil
	}
}

// build makes the next box of the session. The op is held. First the record with its
// id, then the box, then the record that it runs: whenever this process dies, its
// successor knows what may be there. On failure there is no box.
func (s *session) build(ctx context.Context) error {
	s.mu.Lock()
	s.generation++
	s.boxID, s.state, s.reason = newBoxID(), Creating, ""
	spec := s.resolved.Spec
	spec.ID, spec.Labels = s.boxID, s.labelsLocked()
	begun := s.m.store.enqueue(s.recordLocked().put())
	own := s.resolved.Workspace == "" && s.resolved.WorkspaceMode != policy.WorkspaceNone
	s.mu.Unlock()
	if err := begun.wait(); err != nil {
		return err
	}
	if own {
		if err := s.m.workspaces.Make(s.key.Tenant, s.key.ID); err != nil {
			return err
		}
	}
	box, err := s.m.engine.Create(ctx, spec)
	if err != nil {
		// Nothing should be left. If the launcher died in between, nobody knows.
		s.m.discardLater(spec.ID)
		return fmt.Errorf("creating a box: %w", causeOf(ctx, err))
	}
	if err := s.adoptBox(box); err != nil {
		if e := box.Remove(context.WithoutCancel(ctx)); e != nil {
			s.m.discardLater(spec.ID)
			err = errors.Join(err, e)
		}
		return err
	}
	return nil
}

// adoptBox makes box that of the session, once that is recorded.
func (s *session) adoptBox(box engine.LiveBox) error {
	s.mu.Lock()
	record := s.recordLocked()
	record.State = Running
	running := s.m.store.enqueue(record.put())
	s.mu.Unlock()
	if err := running.wait(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.removing {
		s.mu.Unlock()
		return errRemoved
	}
	s.box, s.state = box, Running
	s.mu.Unlock()
	s.touch()
	if !s.m.spawn(func() { s.watch(box) }) {
		return ErrClosed
	}
	s.arm()
	return nil
}

// causeOf says why ctx ended, if that is what err is about.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) && !errors.Is(err, cause) {
		return cause
	}
	return err
}

// newBoxID draws an id by the rules of engine.Spec: 100 bits, so never one twice.
func newBoxID() string { return "s-" + strings.ToLower(rand.Text()[:20]) }

// labelsLocked are the notes on the box by which a session is found again if the
// database is lost. TTLs that are changed later are not in them.
func (s *session) labelsLocked() map[string]string {
	r := s.recordLocked()
	// The box has the spec itself, and the request is only for people.
	r.State, r.Request, r.Resolved.Spec = Running, policy.Request{}, engine.Spec{}
	note, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("session label: %v", err)) // values of plain types: cannot fail
	}
	labels := maps.Clone(s.resolved.Spec.Labels)
	if labels == nil {
		labels = map[string]string{}
	}
	labels[label] = string(note)
	return labels
}

// label is the name of the note.
const label = "boxd.session"

// replace builds a new box for a session whose box is lost or stopped, on the same
// workspace, and with other mounts if change says so. The op is held.
func (s *session) replace(ctx context.Context, c Caller, change mountDiff) (*use, error) {
	s.mu.Lock()
	box := s.box
	s.mu.Unlock()
	if box != nil {
		s.lost(box) // if nobody has noticed yet
	}
	if err := s.m.audit(c, s.key, audit.Entry{Action: "recreate", Decision: audit.Allow, Reason: "its box is gone"}); err != nil {
		return nil, err
	}
	if err := s.tryReplace(ctx, change); err != nil {
		err = s.removedMeanwhile(err)
		s.m.fail(c, s.key, "recreate", err)
		return nil, err
	}
	s.m.counters.recreated.Add(1)
	s.publish(EventRecreated, c, map[string]any{"generation": s.view().Generation})
	_ = s.m.audit(c, s.key, audit.Entry{Action: "recreate", Decision: audit.Done}) // it is allowed and done
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing {
		return nil, errRemoved
	}
	u := s.useLocked()
	u.recreated = true
	return u, nil
}

func (s *session) tryReplace(ctx context.Context, change mountDiff) error {
	s.mu.Lock()
	old := s.resolved
	s.mu.Unlock()
	// The configuration may have changed since this was allowed.
	if err := s.m.policy.CheckMounts(s.key.Tenant, change.apply(old)); err != nil {
		return err
	}
	if err := s.clearBox(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	s.resolved = change.apply(old)
	s.mu.Unlock()
	err := s.build(ctx)
	if err == nil {
		return nil
	}
	s.mu.Lock()
	s.resolved, s.state, s.reason = old, Failed, "building a new box: "+err.Error()
	if s.removing {
		s.state = Stopping
	}
	noted := s.m.store.enqueue(s.recordLocked().put())
	s.mu.Unlock()
	if e := noted.wait(); e != nil {
		err = errors.Join(err, e)
	}
	s.arm()
	return err
}

// clearBox takes apart what is left of the last box, and waits until it is known how
// its managed processes ended. The op is held.
func (s *session) clearBox(ctx context.Context) error {
	s.mu.Lock()
	box, id, list := s.box, s.boxID, s.processesLocked()
	s.mu.Unlock()
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
	s.mu.Lock()
	s.box = nil
	s.mu.Unlock()
	return nil
}

// watch looks after box until it is gone or the manager closes.
func (s *session) watch(box engine.LiveBox) {
	events := box.Events()
	for {
		select {
		case e, ok := <-events:
			if !ok {
				events = nil
				continue
			}
			s.limit(e)
		case <-box.Done():
			s.lost(box)
			s.sweepLost(box)
			return
		case <-s.m.ctx.Done():
			return
		}
	}
}

// limit publishes a limit that the box ran into.
func (s *session) limit(e engine.Event) {
	kind := EventOOM
	if e.Kind == engine.EventPIDs {
		kind = EventPIDsLimit
	}
	s.publish(kind, system, map[string]any{"count": e.Count})
}

// lost marks the session as failed because PID 1 of box is gone, unless that is known.
func (s *session) lost(box engine.LiveBox) {
	s.mu.Lock()
	if s.box != box || s.state != Running || s.removing || !isDone(box.Done()) {
		s.mu.Unlock()
		return
	}
	s.state, s.reason = Failed, "PID 1 of box "+s.boxID+" is gone"
	reason := s.reason
	noted := s.m.store.enqueue(s.recordLocked().put())
	s.mu.Unlock()
	s.m.counters.lost.Add(1)
	s.m.report(s.key, "", reason)
	s.publish(EventState, system, map[string]any{"state": Failed, "reason": reason})
	_ = s.m.audit(system, s.key, audit.Entry{Action: "box-lost", Decision: audit.Failed, Reason: reason})
	if err := noted.wait(); err != nil { // the successor finds it lost as well
		s.m.report(s.key, "", err.Error())
	}
}

// sweepLost takes apart a lost box that nobody replaces at once.
func (s *session) sweepLost(box engine.LiveBox) {
	s.m.retry(func(ctx context.Context) error {
		if err := s.begin(ctx); err != nil {
			return nil // closing
		}
		defer s.end()
		s.mu.Lock()
		mine := s.box == box && s.state == Failed && !s.removing
		s.mu.Unlock()
		if !mine {
			return nil
		}
		ctx, cancel := context.WithTimeout(ctx, sweepTimeout)
		defer cancel()
		return s.clearBox(ctx)
	})
}

// sweepTimeout bounds how long a use of the session waits for the clean-up of its
// lost box, which it does itself if it must.
const sweepTimeout = 5 * time.Second
