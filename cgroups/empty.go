package cgroups

import (
	"context"
	"errors"
	"os"
)

// WaitEmpty returns when no process is in the slot, or with the cause of ctx.
func (s *Slot) WaitEmpty(ctx context.Context) error {
	if len(s.Stats) <= StatEvents || s.Stats[StatEvents] == nil {
		return os.ErrClosed
	}
	if err := waitEmpty(ctx, s.Stats[StatEvents]); !errors.Is(err, os.ErrClosed) {
		return err
	}
	return nil
}
