package daemon

import (
	"context"
	"errors"
)

// close takes apart what Run has opened. Boxes need neither daemon nor launcher.
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
		stop := d.service.Close
		if d.ownLauncher { // no service manager looks after it, and without a daemon it has nothing to do
			stop = func() error { return d.service.Stop(ctx, d.StopSessions) }
		}
		err = errors.Join(err, stop())
	}
	if d.audit != nil {
		err = errors.Join(err, d.audit.Close())
	}
	if d.lock != nil {
		d.lock.Close()
	}
	return err
}
