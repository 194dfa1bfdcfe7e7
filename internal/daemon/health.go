package daemon

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
)

const (
	// healthTime bounds the answers of the launcher. The launcher takes somewhat less to find out
	// that it cannot build boxes.
	healthTime = 7 * time.Second
	// healthAge is how long an answer is reused. LangBot's door answers without credentials,
	// so a client that asks without pause must not keep the launcher busy.
	healthAge = time.Second
)

// lastCheck is the result of the last of some checks that take long.
type lastCheck[T any] struct {
	mu      sync.Mutex
	at      time.Time
	found   T
	err     error
	running chan struct{} // closed when the check in progress has ended; nil: none is in progress
}

// health returns nil if a session could be created now: the launcher can build boxes and mount
// workspaces into them.
func (d *daemon) health(ctx context.Context) error {
	_, err := d.checked.get(ctx, healthTime, healthAge, func(ctx context.Context) (struct{}, error) {
		if err := d.service.Health(ctx); err != nil {
			return struct{}{}, err
		}
		dir := d.dirs.workspaces()
		f, err := d.service.OpenDirectory(ctx, engine.Directory{Path: dir, Within: dir, ReadOnly: true, Mappable: true})
		if err != nil {
			return struct{}{}, fmt.Errorf("workspaces cannot be mounted into boxes: %w", err)
		}
		return struct{}{}, f.Close()
	})
	return err
}

// get returns the result of find, which may be as old as age. Concurrent callers share one call of
// find, whose context ends after limit.
func (h *lastCheck[T]) get(ctx context.Context, limit, age time.Duration, find func(context.Context) (T, error)) (T, error) {
	h.mu.Lock()
	if h.running == nil && !h.at.IsZero() && time.Since(h.at) < age {
		defer h.mu.Unlock()
		return h.found, h.err
	}
	done := h.running
	if done == nil {
		done = make(chan struct{})
		h.running = done
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			found, err := find(ctx)
			h.mu.Lock()
			defer h.mu.Unlock()
			h.at, h.found, h.err, h.running = time.Now(), found, err, nil
			close(done)
		}()
	}
	h.mu.Unlock()
	select {
	case <-done:
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.found, h.err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}
