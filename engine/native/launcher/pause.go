package launcher

import (
	"context"
	"errors"
	"fmt"
	"os"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
)

// handlePause pauses the commands of a box, or lets them go on. The record is written before either: whatever
// kills this launcher meanwhile, the next one does what was asked for.
func (b *box) handlePause(m rpc.Pause) (any, []*os.File, error) {
	if isGVisor(b.spec) && !m.Resume {
		// Measured with runsc's platform systrap: of programs that are frozen a dozen times in quick succession, one
		// dies of a segmentation fault that it has not made.
		return nil, nil, fmt.Errorf("pausing a box with isolation %q, whose kernel does not survive a freeze unharmed: %w", b.spec.Isolation, engine.ErrUnenforceable)
	}
	b.freezing.Lock()
	defer b.freezing.Unlock()
	if b.paused && !m.Resume { // a resume is always carried out: that of a pause that failed may have failed as well
		return nil, nil, nil
	}
	if err := b.recordPaused(!m.Resume); err != nil {
		return nil, nil, b.orLost(err)
	}
	if m.Resume {
		if b.reclaims != nil {
			b.reclaims()
		}
		if err := b.group.Resume(); err != nil {
			return nil, nil, b.orLost(errors.Join(err, b.recordPaused(b.paused)))
		}
		b.paused = false
		return nil, nil, nil
	}
	ctx, cancel := context.WithTimeout(b.life, freezeTime)
	defer cancel()
	if err := b.group.Pause(ctx); err != nil { // such as a process that waits in the kernel for a device
		return nil, nil, b.orLost(errors.Join(err, b.group.Resume(), b.recordPaused(false)))
	}
	b.paused = true
	return nil, nil, nil
}

// recordPaused writes to the record of the box, if it has one, whether it is paused.
func (b *box) recordPaused(paused bool) error {
	b.mu.Lock()
	if b.record != nil {
		b.record.Paused = paused
	}
	b.mu.Unlock()
	return b.save()
}

// thawLocked ends a freeze of the whole box. The caller holds freezing.
func (b *box) thawLocked() error {
	if b.paused {
		return b.group.ThawInit()
	}
	return b.group.Thaw()
}
