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

// build makes the next box of the session. The op is held. First the record with its
// id, then the box, then the record that it runs: whenever this process dies, its
// successor knows what may be there. On failure there is no box.
func (s *session) build(ctx context.Context) error {
	s.mu.Lock()
	s.generation++
	s.boxID, s.state, s.reason = newBoxID(), Creating, ""
	begun := s.m.store.enqueue(s.recordLocked().put())
	s.mu.Unlock()
	if err := begun.wait(); err != nil {
		return err
	}
	if err := s.prepareWorkspace(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	spec := s.resolved.Spec
	spec.ID, spec.Labels = s.boxID, s.labelsLocked()
	s.mu.Unlock()
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
	changes := []change{record.put()}
	volume := volumeOf(s.resolved)
	if s.m.volumes.isKept(volume) { // it is this session's from now on
		changes = append(changes, change{metaBucket, keptKey(volume), nil})
	}
	running := s.m.store.enqueue(changes...)
	s.mu.Unlock()
	if err := running.wait(); err != nil {
		return err
	}
	s.m.volumes.claim(volume)
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
