package session

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"

	"github.com/boxd/boxd/engine"
)

// build makes the next box of the session. The op is held. It ends when there are both the
// record with the id of the box and the box, which are made side by side: whenever this
// process dies, its successor knows what may be there. A box without a record is a stray
// one to it, and a record without a box is of a session that nobody has seen. That the box
// runs is recorded without waiting: a successor that finds the older record takes it from
// the box itself. On failure there is no box.
func (s *session) build(ctx context.Context) error {
	s.mu.Lock()
	s.generation++
	s.boxID, s.state, s.reason = newBoxID(), Creating, ""
	begun := s.m.store.enqueue(s.recordLocked().put())
	s.mu.Unlock()
	box, err := s.makeBox(ctx)
	recorded := begun.wait()
	if err != nil {
		return errors.Join(err, recorded)
	}
	if err = recorded; err == nil {
		err = s.adoptBox(box)
	}
	if err != nil {
		if e := box.Remove(context.WithoutCancel(ctx)); e != nil {
			s.m.discardLater(box.ID())
			err = errors.Join(err, e)
		}
		return err
	}
	return nil
}

// makeBox makes the workspace, if need be, and the box.
func (s *session) makeBox(ctx context.Context) (engine.LiveBox, error) {
	if err := s.prepareWorkspace(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	spec := s.resolved.Spec
	spec.ID, spec.Labels = s.boxID, s.labelsLocked()
	s.mu.Unlock()
	box, err := s.m.engine.Create(ctx, spec)
	if err != nil {
		// Nothing should be left. If the launcher died in between, nobody knows.
		s.m.discardLater(spec.ID)
		return nil, fmt.Errorf("creating a box: %w", causeOf(ctx, err))
	}
	return box, nil
}

// adoptBox makes box that of the session.
func (s *session) adoptBox(box engine.LiveBox) error {
	s.mu.Lock()
	if s.removing {
		s.mu.Unlock()
		return errRemoved
	}
	s.box, s.state = box, Running
	running := s.recordRunningLocked()
	s.mu.Unlock()
	s.touch()
	if !s.m.spawn(func() { s.watch(box) }) || !s.m.spawn(func() { s.confirm(box, running) }) {
		return ErrClosed
	}
	s.arm()
	return nil
}

// recordRunningLocked records that the box runs, and whose the volume is from now on.
func (s *session) recordRunningLocked() *pending {
	changes := []change{s.recordLocked().put()}
	if volume := volumeOf(s.resolved); s.m.volumes.isKept(volume) {
		s.m.volumes.claim(volume)
		changes = append(changes, change{metaBucket, keptKey(volume), nil})
	}
	return s.m.store.enqueue(changes...)
}

// confirm waits until it is recorded that box runs. A record that cannot be written, such
// as on a full disk, is tried again as long as it would be true.
func (s *session) confirm(box engine.LiveBox, running *pending) {
	err := running.wait()
	if err == nil || s.m.ctx.Err() != nil {
		return
	}
	s.m.report(s.key, "", "recording that its box runs (it is tried again): "+err.Error())
	s.m.retry(func(context.Context) error {
		s.mu.Lock()
		if s.box != box || s.state != Running || s.removing {
			s.mu.Unlock()
			return nil
		}
		running := s.recordRunningLocked()
		s.mu.Unlock()
		return running.wait()
	})
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
	r.State, r.Resolved.Spec = Running, engine.Spec{} // the box has the spec itself
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
