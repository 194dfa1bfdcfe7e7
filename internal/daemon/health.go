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

// healthCheck is the result of the last check.
type healthCheck struct {
	mu      sync.Mutex
	at      time.Time
	err     error
	running chan struct{} // closed when the check in progress has ended; nil: none is in progress
}

// health returns nil if a session could be created now: the launcher can build boxes and mount
// workspaces into them.
func (d *daemon) health(ctx context.Context) error {
	return d.checked.get(ctx, func(ctx context.Context) error {
		if err := d.service.Health(ctx); err != nil {
			return err
		}
		dir := d.dirs.workspaces()
		f, err := d.service.OpenDirectory(ctx, engine.Directory{Path: dir, Within: dir, ReadOnly: true, Mappable: true})
		if err != nil {
			return fmt.Errorf("workspaces cannot be mounted into boxes: %w", err)
		}
		return f.Close()
	})
}

// get returns the result of find, which may be as old as healthAge. Concurrent callers share one
// call of find.
func (h *healthCheck) get(ctx context.Context, find func(context.Context) error) error {
	h.mu.Lock()
	if h.running == nil && !h.at.IsZero() && time.Since(h.at) < healthAge {
		defer h.mu.Unlock()
		return h.err
	}
	done := h.running
	if done == nil {
		done = make(chan struct{})
		h.running = done
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), healthTime)
			defer cancel()
			err := find(ctx)
			h.mu.Lock()
			defer h.mu.Unlock()
			h.at, h.err, h.running = time.Now(), err, nil
			close(done)
		}()
	}
	h.mu.Unlock()
	select {
	case <-done:
		h.mu.Lock()
		defer h.mu.Unlock()
		return h.err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
