package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// pauseRecord says since when a session is paused. It holds for one box: the next one runs.
type pauseRecord struct {
	Box   string    `json:"box"`
	Since time.Time `json:"since"`
}

// standstill is the pause of a box, for those who wait for its end and do not count its time.
type standstill struct {
	began   time.Time
	earlier time.Duration // of earlier pauses of the session, since this manager knows it
	over    chan struct{} // closed at the end of the pause; nil: the box is not paused
}

// Pause stops everything that runs in a session, until Resume: its commands and processes get no instruction
// executed, and keep memory and files. Pausing a paused session does nothing.
//
// The idle TTL does not count meanwhile, max_lifetime does. Timeouts of commands and probes of processes stand
// still. Limits and mounts can be changed, and processes stopped and the session removed as always. Whatever needs
// a new command is refused with engine.ErrPaused, unless the session has AutoResume.
//
// ErrState: the session has no box.
func (m *Manager) Pause(ctx context.Context, c Caller, key Key) (View, error) {
	return m.changePause(ctx, c, key, true, false)
}

// PauseReclaim is Pause, and then gives memory of the session to the host as [engine.Pausable].Reclaim does, also if
// it is paused already. Resume may come meanwhile, and ends that. If giving memory back fails, the session stays paused.
//
// ErrUnenforceable: this host cannot; the session is not paused then.
func (m *Manager) PauseReclaim(ctx context.Context, c Caller, key Key) (View, error) {
	return m.changePause(ctx, c, key, true, true)
}

// Resume ends Pause. Resuming a session that is not paused does nothing.
func (m *Manager) Resume(ctx context.Context, c Caller, key Key) (View, error) {
	return m.changePause(ctx, c, key, false, false)
}

func (m *Manager) changePause(ctx context.Context, c Caller, key Key, pause, reclaim bool) (View, error) {
	if err := key.validate(); err != nil {
		return View{}, err
	}
	if err := m.enter(); err != nil {
		return View{}, err
	}
	s, err := m.findSettled(key)
	if err != nil {
		m.wg.Done()
		return View{}, err
	}
	u := s.quietUse()
	if u == nil {
		m.wg.Done()
		if !pause && !s.isRemoving() { // its next box runs
			return s.view(), nil
		}
		return View{}, fmt.Errorf("session %s is %s and has no box that could be paused: %w", spec.Quote(key.ID), s.view().State, ErrState)
	}
	defer u.release()
	if err := u.awaitRecord(); err != nil {
		return View{}, err
	}
	ctx, stop := s.callContext(ctx)
	defer stop()
	if err := s.lockOp(ctx); err != nil {
		return View{}, err
	}
	if reclaim {
		err = s.checkReclaim(ctx, c, u.box)
	}
	if err == nil {
		err = s.setPaused(ctx, c, u.box, pause)
	}
	s.unlockOp()
	if err != nil {
		return View{}, err
	}
	if !reclaim {
		return s.view(), nil
	}
	bytes, err := u.box.(engine.Pausable).Reclaim(ctx)
	if err != nil {
		return View{}, s.m.noteFailure(c, s.key, "reclaim", err)
	}
	v := s.view()
	v.Reclaimed = &bytes
	return v, nil
}

// checkReclaim admits that memory of box is given to the host: before the pause, so that a refusal pauses nothing.
func (s *session) checkReclaim(ctx context.Context, c Caller, box engine.LiveBox) error {
	if err := s.m.audit(c, s.key, audit.Entry{Action: "reclaim", Decision: audit.Allow}); err != nil {
		return err
	}
	p, ok := box.(engine.Pausable)
	if !ok {
		return s.m.noteFailure(c, s.key, "reclaim", errCannotPause)
	}
	if err := p.CanReclaim(ctx); err != nil {
		return s.m.noteFailure(c, s.key, "reclaim", err)
	}
	return nil
}

func (s *session) isRemoving() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.removing
}

// pausedLocked reports whether the session is paused.
func (s *session) pausedLocked() bool {
	p := s.record.Paused
	return p != nil && p.Box == s.record.Box && s.record.State == Running
}

var errCannotPause = fmt.Errorf("this engine cannot pause boxes: %w", engine.ErrUnenforceable)

// setPaused pauses box or resumes it. The caller holds the op.
//
// The box comes before the record: a manager that takes the box over believes the box, see adoptPause. A box that
// should be running is asked to resume all the same, as it may have been paused by a request that failed.
func (s *session) setPaused(ctx context.Context, c Caller, box engine.LiveBox, pause bool) error {
	s.mu.Lock()
	is := s.pausedLocked()
	s.mu.Unlock()
	p, ok := box.(engine.Pausable)
	if is && pause || !is && !pause && !ok {
		return nil
	}
	action, event := "resume", EventResumed
	if pause {
		action, event = "pause", EventPaused
	}
	if err := s.m.audit(c, s.key, audit.Entry{Action: action, Decision: audit.Allow}); err != nil {
		return err
	}
	if !ok {
		return s.m.noteFailure(c, s.key, action, errCannotPause)
	}
	change, undo := p.Resume, p.Pause
	if pause {
		change, undo = p.Pause, p.Resume
	}
	if err := change(ctx); err != nil {
		if pause && !errors.Is(err, engine.ErrUnenforceable) && !errors.Is(err, engine.ErrBoxLost) {
			s.m.spawn(func() { s.resumeLater(box, p) })
		}
		return s.m.noteFailure(c, s.key, action, err)
	}
	if is == pause {
		return nil
	}
	var details map[string]any
	s.mu.Lock()
	before := s.record.Paused
	s.record.Paused = nil
	if pause {
		s.record.Paused = &pauseRecord{box.ID(), time.Now().Round(0)}
	} else {
		details = map[string]any{"seconds": time.Since(before.Since).Seconds()}
	}
	s.noteStandstillLocked(pause)
	write := s.m.store.enqueue(s.putLocked()...)
	s.mu.Unlock()
	if err := write.wait(); err != nil {
		s.mu.Lock()
		s.record.Paused = before
		s.noteStandstillLocked(!pause)
		s.mu.Unlock()
		return errors.Join(s.m.noteFailure(c, s.key, action, err), undo(context.WithoutCancel(ctx)))
	}
	s.publish(event, c, box.ID(), details)
	s.touch() // its idle time begins anew
	s.arm()
	return nil
}

// resumeLater makes sure that box, whose pause has failed, runs: a launcher that was lost before it answered may have
// paused it. It retries until the box has answered, is paused by another request, or is gone.
func (s *session) resumeLater(box engine.LiveBox, p engine.Pausable) {
	s.m.retry(func(ctx context.Context) error {
		if err := s.lockOp(ctx); err != nil {
			return nil // closing
		}
		defer s.unlockOp()
		s.mu.Lock()
		over := s.box != box || s.pausedLocked()
		s.mu.Unlock()
		if over || isDone(box.Done()) {
			return nil
		}
		return p.Resume(ctx)
	})
}

// adoptPause takes over from box, which an earlier manager has left, whether it is paused.
func (s *session) adoptPause(box engine.LiveBox) {
	p, ok := box.(engine.Pausable)
	paused := ok && p.Paused()
	s.mu.Lock()
	switch {
	case !paused:
		s.record.Paused = nil
	case s.record.Paused == nil || s.record.Paused.Box != box.ID():
		s.record.Paused = &pauseRecord{box.ID(), time.Now().Round(0)}
	}
	if paused {
		s.noteStandstillLocked(true)
	}
	s.mu.Unlock()
}

// noteStandstillLocked tells those who wait that a pause has begun or ended.
func (s *session) noteStandstillLocked(pause bool) {
	st := &s.standstill
	if st.over != nil { // also of a box that was lost in its pause
		st.earlier += time.Since(st.began)
		close(st.over)
		st.over = nil
	}
	if pause {
		st.began, st.over = time.Now(), make(chan struct{})
	}
}

// stoodStill returns how long the session has been paused altogether, since this manager knows it.
func (s *session) stoodStill() time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	sum := s.standstill.earlier
	if s.standstill.over != nil {
		sum += time.Since(s.standstill.began)
	}
	return sum
}

// awaitResumed waits while the session is paused, until done or the box ends.
func (s *session) awaitResumed(done <-chan struct{}) {
	s.mu.Lock()
	over, box := s.standstill.over, s.box
	s.mu.Unlock()
	if over == nil {
		return
	}
	var gone <-chan struct{}
	if box != nil {
		gone = box.Done()
	}
	select {
	case <-over:
	case <-done:
	case <-gone:
	case <-s.ctx.Done():
	}
}

// refusePaused fails if the session of u is paused and use does not resume it.
func (u *use) refusePaused() error {
	s := u.s
	s.mu.Lock()
	paused, auto := s.pausedLocked(), s.record.Resolved.AutoResume
	s.mu.Unlock()
	if paused && !auto {
		return s.pausedError()
	}
	return nil
}

// wake makes sure that a command can start in the session of u: a paused one is resumed, or the use is refused.
// Its caller has been admitted, so that what is refused resumes nothing.
func (u *use) wake(ctx context.Context, c Caller) error {
	if err := u.refusePaused(); err != nil {
		return err
	}
	s := u.s
	s.mu.Lock()
	paused := s.pausedLocked()
	s.mu.Unlock()
	if !paused {
		return nil
	}
	if err := s.lockOp(ctx); err != nil {
		return err
	}
	defer s.unlockOp()
	s.mu.Lock()
	paused = s.pausedLocked()
	s.mu.Unlock()
	if !paused { // another caller was faster
		return nil
	}
	return s.setPaused(ctx, c, u.box, false)
}

func (s *session) pausedError() error {
	return fmt.Errorf("session %s: %w: boxd resume %s lets it go on", spec.Quote(s.key.ID), engine.ErrPaused, spec.Quote(s.key.ID))
}

// orPaused replaces the error of a command that was about to start when the session was paused.
func (s *session) orPaused(err error) error {
	if errors.Is(err, engine.ErrPaused) {
		return s.pausedError()
	}
	return err
}
