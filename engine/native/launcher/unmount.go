package launcher

import (
	"context"
	"errors"
	"time"

	"github.com/boxd/boxd/mounts"
)

// freezeTime bounds the wait for all processes of a box to stand still.
const freezeTime = 2 * time.Second

// unmount takes away a mount of the box, wherever the box has taken it: what lies in
// a mount that it may write to can be renamed, with the mounts inside of it.
func (b *box) unmount(target string, id mounts.MountID) error {
	err := b.withNS(func(ns mounts.NS) error { return mounts.Detach(ns, target, id) })
	if !errors.Is(err, mounts.ErrNotAttached) {
		return err
	}
	b.freezing.Lock()
	defer b.freezing.Unlock()
	ctx, cancel := context.WithTimeout(b.life, freezeTime)
	defer cancel()
	ferr := b.group.Freeze(ctx) // a box that cannot be frozen is looked at nevertheless
	err = b.withNS(func(ns mounts.NS) error { return mounts.DetachMoved(ns, b.pid, id) })
	if err != nil {
		err = errors.Join(err, ferr)
	}
	return errors.Join(err, b.group.Thaw())
}
