package session

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/boxd/boxd/engine"
)

// build makes the next box of the session. The op is held. It ends when there are both the
// record with the id of the box and the box, which are made side by side: whenever this
// process dies, its successor knows what may be there. A box without a record is a stray
// one to it, and a record without a box is of a session that nobody has seen. That the box
// runs is recorded while its first command may run already: see use.awaitRecord. On
// failure there is no box. kind is what is told of the box.
func (s *session) build(ctx context.Context, c Caller, kind EventType) error {
	if err := s.m.store.admit(); err != nil {
		return err
	}
	fresh := kind == EventCreated && s.m.workspaces.IsMissing(s.key.Tenant, s.key.ID)
	s.mu.Lock()
	if s.removing {
		s.mu.Unlock()
		return errRemoved
	}
	s.generation++
	s.fresh = fresh
	s.boxID, s.state, s.reason = newBoxID(), Creating, ""
	begun := s.m.store.enqueue(s.recordLocked().put())
	s.mu.Unlock()
	box, err := s.makeBox(ctx)
	recorded := begun.wait()
	if recorded != nil {
		s.m.report(s.key, "", recorded.Error())
	}
	if err != nil {
		return err
	}
	if err = recorded; err == nil {
		err = s.adoptBox(box, c, kind)
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
	b := s.resolved.Spec()
	b.ID, b.Labels = s.boxID, s.labelsLocked()
	s.mu.Unlock()
	box, err := s.m.engine.Create(ctx, b)
	if err != nil {
		// Nothing should be left. If the launcher died in between, nobody knows.
		s.m.discardLater(b.ID)
		return nil, fmt.Errorf("creating a box: %w", causeOf(ctx, err))
	}
	return box, nil
}

// adoptBox makes box that of the session, and tells kind.
func (s *session) adoptBox(box engine.LiveBox, c Caller, kind EventType) error {
	begun := make(chan *recording, 1)
	ok := s.m.spawn(func() { // before anything is recorded, which it would be too late to undo
		if r := <-begun; r != nil {
			s.m.wg.Go(func() { s.confirm(r) })
			s.watch(box)
		}
	})
	if !ok {
		return ErrClosed
	}
	defer close(begun)
	s.mu.Lock()
	if s.removing {
		s.mu.Unlock()
		return errRemoved
	}
	s.box, s.state, s.made = box, Running, true
	volume := volumeOf(s.resolved)
	if !s.m.volumes.isKept(volume) {
		volume = ""
	}
	told := s.event(kind, c, s.boxID, map[string]any{"generation": s.generation})
	s.m.events.publish(told)
	begun <- s.recordBoxLocked(volume)
	s.mu.Unlock()
	s.m.logEvent(told)
	s.touch()
	s.arm()
	return nil
}

// recording is an attempt to record that a box runs.
type recording struct {
	m        *Manager
	volume   string // was kept for the session and is its own from then on; mostly empty
	repeated bool   // after one that failed
	queued   *pending
	done     chan struct{} // closed when err is known
	err      error
}

// recordBoxLocked begins to record the session as it is with its new box. The caller calls
// await.
func (s *session) recordBoxLocked(volume string) *recording {
	s.recording = &recording{m: s.m, volume: volume, done: make(chan struct{})}
	s.recording.queued = s.m.store.enqueue(s.recording.changes(s)...)
	return s.recording
}

// changes are what is to be written of s. s.mu is held.
func (r *recording) changes(s *session) []change {
	list := []change{s.recordLocked().put()}
	if r.volume != "" {
		list = append(list, change{metaBucket, keptKey(r.volume), nil})
	}
	return list
}

// await ends the attempt. It is called once; everybody else waits for done.
func (r *recording) await() error {
	if r.err = r.queued.wait(); r.err == nil && r.volume != "" {
		r.m.volumes.claim(r.volume)
	}
	close(r.done)
	return r.err
}

// confirm waits until r is on disk. What cannot be written, such as on a full disk, is
// tried again, whatever has become of the box; until then nobody can use the session.
func (s *session) confirm(r *recording) {
	err := r.await()
	if err == nil || s.m.ctx.Err() != nil {
		return
	}
	s.m.report(s.key, "", "recording that its box runs (it will be retried): "+err.Error())
	s.m.retry(func(context.Context) error {
		s.mu.Lock()
		if s.recording != r || s.removing || s.gone || s.state == Stopping { // which is for its own record
			s.mu.Unlock()
			return nil
		}
		r = s.recordBoxLocked(r.volume)
		r.repeated = true
		s.mu.Unlock()
		return r.await()
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
	r.State, r.Fresh, r.Resolved.Mounts = Running, false, nil // the box has its spec itself
	note, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("session label: %v", err)) // values of plain types: cannot fail
	}
	return map[string]string{label: string(note)}
}

// label is the name of the note.
const label = "boxd.session"
