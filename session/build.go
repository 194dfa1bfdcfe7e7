package session

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/choose"
	"github.com/boxd/boxd/engine/spec"
)

// build creates the next box of the session and publishes an event of the given kind. The
// caller holds the op. If it fails, no box is left.
//
// The box and the record with its ID are created concurrently, and build waits for both. So
// a successor of this process can tell what each leftover is: a box without a record is a
// stray one, and a record without a box belongs to a session that no client has seen. A
// second record, which says that the box runs, may still be under way while the first
// command runs: see use.awaitRecord.
func (s *session) build(ctx context.Context, c Caller, kind EventType) error {
	if err := s.m.store.admit(); err != nil {
		return err
	}
	s.mu.Lock()
	if s.removing {
		s.mu.Unlock()
		return errRemoved
	}
	s.record.Generation++
	s.record.Fresh = s.record.Fresh && kind == EventCreated
	s.record.Box, s.record.State, s.record.Reason = newBoxID(), Creating, ""
	s.record.NetworkBytes = 0
	write := s.m.store.enqueue(s.putLocked()...)
	s.mu.Unlock()
	box, err := s.makeBox(ctx)
	recorded := write.wait()
	if recorded != nil {
		s.m.report(s.key, "", recorded.Error())
	}
	if err != nil {
		return err
	}
	if err = recorded; err == nil {
		err = s.installBox(box, c, kind)
	}
	if err != nil {
		s.closeNetwork()
		if e := box.Remove(context.WithoutCancel(ctx)); e != nil {
			s.discardHolding(box.ID())
			err = errors.Join(err, e)
		}
		return err
	}
	return nil
}

// makeBox prepares the workspace, creates the box and opens its network. A session that had a box
// before goes on without a network that it may not have any more.
func (s *session) makeBox(ctx context.Context) (engine.LiveBox, error) {
	if err := s.prepareWorkspace(ctx); err != nil {
		return nil, err
	}
	s.mu.Lock()
	b, r, first := s.record.box(), s.resolvedLocked(), s.record.Generation == 1
	b.ID, b.Labels = s.record.Box, s.labelsLocked()
	s.mu.Unlock()
	if err := s.m.named.checkThere(b.Mounts); err != nil {
		return nil, err
	}
	if !s.once {
		b.Zygotes = s.m.policy.Zygotes(r)
	} else if s.zygote != nil {
		one := *s.zygote
		one.Spares = 1
		b.Zygotes, b.Once = []spec.Zygote{one}, true
	}
	order, err := s.m.policy.Engines(r) // the configuration may have changed since the last box
	if err != nil {
		return nil, err
	}
	box, built, err := s.m.engines.Create(ctx, b, choose.Request{Order: order, Walls: r.Walls()})
	if err != nil {
		// Nothing should be left, unless the launcher died in between.
		s.discardHolding(b.ID)
		return nil, s.m.explainLost(ctx, b.Mounts, fmt.Errorf("creating a box: %w", causeOf(ctx, err)))
	}
	s.mu.Lock()
	s.record.Built = built
	s.mu.Unlock()
	if err := s.openNetwork(ctx, box, r); err != nil && (first || !s.goesWithout(err)) {
		if e := box.Remove(context.WithoutCancel(ctx)); e != nil {
			s.discardHolding(b.ID)
		}
		return nil, err
	}
	return box, nil
}

// discardHolding removes a box of the session in the background.
func (s *session) discardHolding(box string) {
	s.mu.Lock()
	mounts := slices.Concat(s.record.Resolved.Mounts, s.record.Attaching)
	s.mu.Unlock()
	s.m.discardHolding(s.key, box, mounts)
}

// installBox makes box the session's box, and publishes an event of the given kind.
func (s *session) installBox(box engine.LiveBox, c Caller, kind EventType) error {
	begin := make(chan *recording, 1)
	ok := s.m.spawn(func() { // first, because a record could not be undone
		if r := <-begin; r != nil {
			s.m.wg.Go(func() { s.confirm(r) })
			s.watch(box)
		}
	})
	if !ok {
		return ErrClosed
	}
	defer close(begin)
	s.mu.Lock()
	if s.removing {
		s.mu.Unlock()
		return errRemoved
	}
	s.box, s.record.State, s.made = box, Running, true
	s.record.BoxSince = time.Now().Round(0)
	s.beginMeterLocked(box, s.record.BoxSince)
	volume := volumeOf(s.record.Resolved)
	if !s.m.volumes.isKept(volume) {
		volume = ""
	}
	details := map[string]any{"generation": s.record.Generation}
	if why := s.record.Sensitive; why != nil && kind == EventCreated {
		details["sensitive"] = why.Reason
	}
	if why := s.record.Built.Degraded; why != "" {
		details["degraded"] = why
	}
	e := s.eventLocked(kind, c, details)
	s.m.events.publish(e)
	begin <- s.recordBoxLocked(volume)
	s.mu.Unlock()
	s.m.logEvent(e)
	s.touch()
	s.arm()
	return nil
}

// recording is an attempt to record that a box runs.
type recording struct {
	m        *Manager
	volume   string // formerly kept without a session, and the session's own from now on; mostly empty
	repeated bool   // follows an attempt that failed
	queued   *pending
	done     chan struct{} // closed when err is known
	err      error
}

// recordBoxLocked begins to record the session with its new box. The caller calls await.
func (s *session) recordBoxLocked(volume string) *recording {
	s.recording = &recording{m: s.m, volume: volume, done: make(chan struct{})}
	s.recording.queued = s.m.store.enqueue(s.recording.changes(s)...)
	return s.recording
}

// changes returns the changes to write for s. The caller holds s.mu.
func (r *recording) changes(s *session) []change {
	list := s.putLocked()
	if r.volume != "" {
		list = append(list, change{metaBucket, keptKey(r.volume), nil})
	}
	return list
}

// await waits for the end of the attempt. One goroutine calls it; all others wait for done.
func (r *recording) await() error {
	if r.err = r.queued.wait(); r.err == nil && r.volume != "" {
		r.m.volumes.claim(r.volume)
	}
	close(r.done)
	return r.err
}

// confirm waits until r is on disk. It retries a write that fails, for example on a full
// disk, even if the box has ended; until a write succeeds, the session cannot be used.
func (s *session) confirm(r *recording) {
	err := r.await()
	if err == nil || s.m.ctx.Err() != nil {
		return
	}
	s.m.report(s.key, "", "recording that its box runs (it will be retried): "+err.Error())
	s.m.retry(func(context.Context) error {
		s.mu.Lock()
		// A session that is stopping writes its own record.
		if s.recording != r || s.removing || s.gone || s.record.State == Stopping {
			s.mu.Unlock()
			return nil
		}
		r = s.recordBoxLocked(r.volume)
		r.repeated = true
		s.mu.Unlock()
		return r.await()
	})
}

// causeOf returns the cause with which ctx ended, if err says that ctx ended.
func causeOf(ctx context.Context, err error) error {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, ctx.Err()) && !errors.Is(err, cause) {
		return cause
	}
	return err
}

// newBoxID returns a new ID by the rules of engine.Spec. It has 100 random bits, so no ID
// occurs twice.
func newBoxID() string { return "s-" + strings.ToLower(rand.Text()[:20]) }

// labelsLocked returns the labels by which the session is found through its box if the
// database is lost. The engine cannot change them, so they do not follow later changes of TTLs,
// retain, name and labels; docs/operations.md says so.
func (s *session) labelsLocked() map[string]string {
	r := s.recordLocked()
	r.State, r.Fresh, r.Resolved.Mounts = Running, false, nil // the box itself has its spec
	r.BoxSince = time.Now().Round(0)
	note, err := json.Marshal(r)
	if err != nil {
		panic(fmt.Sprintf("session label: %v", err)) // values of plain types: cannot fail
	}
	return map[string]string{label: string(note)}
}

// label is the name of the label with the session's record.
const label = "boxd.session"
