package native

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
)

// pauses are those of one box.
//
// A process that is put into a frozen cgroup stands still before its program runs, and its start would count as
// failed. So a pause waits for the starts in progress, and no other start begins meanwhile.
type pauses struct {
	turn chan struct{} // holds a token while a pause begins or ends

	mu       sync.Mutex
	closed   bool          // no command may start: the box is paused, or is about to be
	starting int           // commands that are being started
	idle     chan struct{} // closed when starting is 0; nil: nobody waits for that
	paused   bool
	since    time.Time     // of the pause
	earlier  time.Duration // of all pauses before it
	changed  chan struct{} // closed and replaced when a pause has begun or ended
}

func newPauses() *pauses { return &pauses{turn: make(chan struct{}, 1), changed: make(chan struct{})} }

// beginStart admits the start of a command. Unless it fails, the caller calls endStart.
func (p *pauses) beginStart() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return engine.ErrPaused
	}
	p.starting++
	return nil
}

func (p *pauses) endStart() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.starting--; p.starting == 0 && p.idle != nil {
		close(p.idle)
		p.idle = nil
	}
}

// close refuses starts, and waits for those in progress. After an error starts are admitted as before.
func (p *pauses) close(ctx context.Context) error {
	p.mu.Lock()
	p.closed = true
	if p.starting == 0 {
		p.mu.Unlock()
		return nil
	}
	idle := make(chan struct{})
	p.idle = idle
	p.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		p.mu.Lock()
		p.closed, p.idle = p.paused, nil
		p.mu.Unlock()
		return fmt.Errorf("waiting for commands that are being started: %w", context.Cause(ctx))
	}
}

// set notes that the box is paused, since then, or not.
func (p *pauses) set(paused bool, since time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = paused
	if p.paused == paused {
		return
	}
	if p.paused {
		p.earlier += time.Since(p.since)
	}
	p.paused, p.since = paused, since
	close(p.changed)
	p.changed = make(chan struct{})
}

// now returns how long the box has been paused altogether, whether it is, and a channel that is closed when
// that changes.
func (p *pauses) now() (sum time.Duration, paused bool, changed <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	sum = p.earlier
	if p.paused {
		sum += time.Since(p.since)
	}
	return sum, p.paused, p.changed
}

// Pause implements engine.Pausable.
func (b *box) Pause(ctx context.Context) error { return b.setPaused(ctx, true) }

// Resume implements engine.Pausable.
func (b *box) Resume(ctx context.Context) error { return b.setPaused(ctx, false) }

// setPaused asks the launcher also for what is so already as far as is known: it may know better.
func (b *box) setPaused(ctx context.Context, paused bool) error {
	p, what := b.pauses, "resuming"
	if paused {
		what = "pausing"
	}
	select {
	case p.turn <- struct{}{}:
		defer func() { <-p.turn }()
	case <-ctx.Done():
		return fmt.Errorf("%s box %q: %w", what, b.id, context.Cause(ctx))
	}
	if paused {
		if err := p.close(ctx); err != nil {
			return fmt.Errorf("%s box %q: %w", what, b.id, err)
		}
	}
	since := time.Now()
	// The launcher carries out a request whose caller has gone, so this waits for the answer.
	ask := rpc.Pause{ID: b.id, Resume: !paused}
	if _, err := b.engine.link.call(context.WithoutCancel(ctx), rpc.TypePause, ask, nil); err != nil {
		p.mu.Lock()
		p.closed = p.paused
		p.mu.Unlock()
		return fmt.Errorf("%s box %q: %w", what, b.id, err)
	}
	p.set(paused, since)
	return nil
}

// CanReclaim implements engine.Pausable.
func (b *box) CanReclaim(ctx context.Context) error {
	_, err := b.reclaim(ctx, true)
	return err
}

// Reclaim implements engine.Pausable.
func (b *box) Reclaim(ctx context.Context) (int64, error) { return b.reclaim(ctx, false) }

func (b *box) reclaim(ctx context.Context, ask bool) (int64, error) {
	var done rpc.Reclaimed
	if _, err := b.engine.link.call(ctx, rpc.TypeReclaim, rpc.Reclaim{ID: b.id, Ask: ask}, &done); err != nil {
		return 0, fmt.Errorf("giving memory of box %q to the host: %w", b.id, err)
	}
	return done.Bytes, nil
}

// Paused implements engine.Pausable.
func (b *box) Paused() bool {
	_, paused, _ := b.pauses.now()
	return paused
}

// runTimer fires when a box has been running, without its pauses, for a time.
type runTimer struct {
	*time.Timer
	pauses *pauses
	most   time.Duration
	began  time.Time
	before time.Duration // in which the box was paused before began
}

// newRunTimer returns a timer of most that began to count when the box had been paused for before.
func newRunTimer(p *pauses, most time.Duration, began time.Time, before time.Duration) *runTimer {
	t := &runTimer{Timer: time.NewTimer(most), pauses: p, most: most, began: began, before: before}
	t.adapt()
	return t
}

// adapt is called when a pause has begun or ended. A nil timer is fine.
func (t *runTimer) adapt() {
	if t == nil {
		return
	}
	sum, paused, _ := t.pauses.now()
	if paused {
		t.Stop()
		return
	}
	t.Reset(t.most - (time.Since(t.began) - (sum - t.before)))
}
