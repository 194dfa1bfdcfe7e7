package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/boxd/boxd/engine/native"
)

// close takes apart what open has put together, as far as it came.
func (d *daemon) close() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	for _, door := range d.doors {
		door.Close()
	}
	if d.sessions != nil {
		err = d.sessions.Close(ctx, d.StopSessions)
	}
	if d.service != nil {
		err = errors.Join(err, d.closeService(ctx))
	}
	if d.audit != nil {
		err = errors.Join(err, d.audit.Close())
	}
	if d.lock != nil {
		d.lock.Close()
	}
	return err
}

// closeService lets go of the launcher service, or ends one that no service manager
// looks after: it has nothing to do without a daemon. Boxes do not need it.
func (d *daemon) closeService(ctx context.Context) error {
	if !d.ownLauncher {
		return d.service.Close()
	}
	if err := d.service.Stop(ctx, d.StopSessions); err != nil {
		return err
	}
	// Its directories are in use until its socket is gone, the last that it removes.
	for socket := filepath.Join(d.dirs.runtime, native.SocketName); ; {
		if _, err := os.Lstat(socket); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		select {
		case <-time.After(launcherPause):
		case <-ctx.Done():
			return fmt.Errorf("waiting for the end of the launcher service: %w", ctx.Err())
		}
	}
}

// launcherPause is between two looks whether the launcher has ended.
const launcherPause = 5 * time.Millisecond
