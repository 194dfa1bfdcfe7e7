package launcher

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
)

// reclaimTime bounds how long memory of one box is given to the host, the wait for a turn included.
const reclaimTime = 2 * time.Second

// handleReclaim gives memory of a paused box to the host. It does not hold freezing meanwhile, so that a resume need
// not wait.
func (l *Launcher) handleReclaim(b *box, m rpc.Reclaim) (any, []*os.File, error) {
	if isGVisor(b.spec) {
		return nil, nil, fmt.Errorf("a box with isolation %q cannot be paused: %w", b.spec.Isolation, engine.ErrUnenforceable)
	}
	if why := b.group.WhyNoReclaim(); why != "" {
		return nil, nil, fmt.Errorf("%s: pause without it: %w", why, engine.ErrUnenforceable)
	}
	if m.Ask {
		return rpc.Reclaimed{}, nil, nil
	}
	ctx, cancel := context.WithTimeout(b.life, reclaimTime)
	defer cancel()
	select { // one box at a time: swap is as slow as its disk
	case l.reclaiming <- struct{}{}:
		defer func() { <-l.reclaiming }()
	case <-ctx.Done():
		return rpc.Reclaimed{}, nil, nil
	}
	b.freezing.Lock()
	if !b.paused {
		b.freezing.Unlock()
		return rpc.Reclaimed{}, nil, nil
	}
	b.reclaims = cancel
	b.freezing.Unlock()
	bytes, err := b.group.Reclaim(ctx)
	b.freezing.Lock()
	b.reclaims = nil
	b.freezing.Unlock()
	return rpc.Reclaimed{Bytes: bytes}, nil, b.orLost(err)
}
