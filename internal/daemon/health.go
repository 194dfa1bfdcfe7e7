package daemon

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
)

const (
	// healthTime bounds the answers of the launcher: somewhat more than it takes to find out
	// that it cannot build boxes.
	healthTime = 7 * time.Second
	// healthAge is how long an answer is reused. LangBot's door answers without credentials,
	// so a client that asks without pause must not keep the launcher busy.
	healthAge = time.Second
)

// healthCheck is the health that was found out last.
type healthCheck struct {
	mu      sync.Mutex
	at      time.Time
	err     error
	running chan struct{} // closed when it has been found out again; nil while no look is under way
}

// health is nil if a session could be made now: the launcher can build boxes, and can mount
// workspaces into them.
func (d *daemon) health(ctx context.Context) error { return d.checked.get(ctx, d.findHealth) }

func (d *daemon) findHealth(ctx context.Context) error {
	if err := d.service.Health(ctx); err != nil {
		return err
	}
	dir := d.dirs.workspaces()
	f, err := d.service.OpenDirectory(ctx, engine.Directory{Path: dir, Within: dir, ReadOnly: true, Mappable: true})
	if err != nil {
		return fmt.Errorf("workspaces cannot be mounted into boxes: %w", err)
	}
	return f.Close()
}

// get returns what find has found within healthAge, or finds it out, once for all who ask.
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
		go h.run(done, find)
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

// run ends within healthTime.
func (h *healthCheck) run(done chan struct{}, find func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), healthTime)
	defer cancel()
	err := find(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.at, h.err, h.running = time.Now(), err, nil
	close(done)
}
