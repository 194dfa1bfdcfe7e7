package daemon

import (
	"context"
	"errors"
)

// close takes apart what open has put together, as far as it came.
func (d *daemon) close() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	for _, door := range d.doors {
		door.Close()
	}
	err = d.langbot.close()
	if d.sessions != nil {
		err = errors.Join(err, d.sessions.Close(ctx, d.StopSessions))
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
	if d.ownLauncher {
		return d.service.Stop(ctx, d.StopSessions)
	}
	return d.service.Close()
}
