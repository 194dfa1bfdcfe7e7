package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/boxd/boxd/api"
	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/session"
	sdnotify "github.com/coreos/go-systemd/v22/daemon"
)

// How long a graceful stop may take: drainPatience for requests under way, commands
// among them, then closePatience for sessions and launcher.
const (
	drainPatience = 20 * time.Second
	closePatience = 30 * time.Second
)

// How long to wait for a launcher that is started by somebody else: one whose
// socket is there is being started again, or is taking over its boxes.
const (
	connectPatience = 30 * time.Second
	missingPatience = 2 * time.Second
)

// openUnprivileged gives up root and does the rest: what clients and boxes have a
// say in is only ever read without privileges.
func (d *daemon) openUnprivileged(ctx context.Context) (err error) {
	if err := d.dropRoot(); err != nil {
		return err
	}
	c := &d.Config
	if d.service, err = d.connect(ctx); err != nil {
		return err
	}
	if d.audit, err = audit.Open(c.Audit.File, audit.Options{MaxBytes: int64(c.Audit.MaxSize), Keep: c.Audit.Keep, Sync: c.Audit.Sync}); err != nil {
		return fmt.Errorf("audit log: %w", err)
	}
	decide, err := policy.New(c.Policy)
	if err != nil {
		return err
	}
	metrics := api.NewMetrics()
	d.sessions, err = session.Open(ctx, session.Options{
		DB: filepath.Join(d.dirs.state, "boxd.db"), Workspaces: filepath.Join(d.dirs.state, "workspaces"), Lock: d.lock,
		Engine: d.service, Policy: decide, Audit: d.audit, Logger: d.log,
		OutputLimit: int64(c.Exec.OutputLimit), CaptureLimit: int64(c.Exec.CaptureLimit), History: int64(c.Relay.History),
		KeepEnded: c.Sessions.KeepEnded, StopGrace: time.Duration(c.Sessions.StopGrace),
		Observe: metrics.ObserveExec,
	})
	if err != nil {
		return fmt.Errorf("sessions: %w", err)
	}
	d.server = api.New(api.Options{
		Sessions: d.sessions, Auth: d.auth, Version: d.Version, Logger: d.log,
		Health: d.service.Health, Audit: d.audit, Metrics: metrics,
		MaxBody: int64(c.HTTP.MaxBody), MaxFile: int64(c.HTTP.MaxFile), MaxConnections: c.HTTP.MaxConnections, MaxRelays: c.Relay.MaxClients,
		HeaderTimeout: time.Duration(c.HTTP.HeaderTimeout), IdleTimeout: time.Duration(c.HTTP.IdleTimeout),
	})
	return nil
}

// connect connects to the launcher service.
func (d *daemon) connect(ctx context.Context) (*native.Service, error) {
	socket := filepath.Join(d.dirs.runtime, native.SocketName)
	patience := connectPatience
	if _, err := os.Lstat(socket); errors.Is(err, fs.ErrNotExist) {
		patience = missingPatience
	}
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	s, err := native.Connect(ctx, native.ServiceOptions{Socket: socket, Logger: d.log})
	if err != nil && !d.root {
		return nil, fmt.Errorf("launcher service at %q: %w: start boxd-launcher.service, or start boxd serve as root, which starts one", socket, err)
	}
	if err != nil {
		return nil, fmt.Errorf("launcher service at %q: %w", socket, err)
	}
	return s, nil
}

// serve answers requests until a signal, or until a listener fails.
func (d *daemon) serve(signals *signals) error {
	var serving sync.WaitGroup
	failed := make(chan error, len(d.doors))
	for _, door := range d.doors {
		d.log.Info("listening", "network", door.Addr().Network(), "address", door.Addr().String(), "tls", door.tls != nil)
		serving.Go(func() {
			if err := d.server.Serve(door.Listener, door.tls); err != nil && !errors.Is(err, net.ErrClosed) {
				failed <- fmt.Errorf("serving %s: %w", door.Addr(), err)
			}
		})
	}
	d.doors = nil // the server closes them
	quit := make(chan struct{})
	serving.Go(func() { keepWatchdog(d.log, func() { d.sessions.Stats() }, quit) })
	notify(d.log, sdnotify.SdNotifyReady)
	d.log.Info("boxd is ready", "version", d.Version, "pid", os.Getpid(), "state_dir", d.dirs.state, "sessions", len(d.sessions.List("")))
	err := d.await(signals, failed)
	notify(d.log, sdnotify.SdNotifyStopping)
	close(quit)
	d.drain(signals)
	serving.Wait()
	return err
}

// await returns when the daemon is to stop.
func (d *daemon) await(signals *signals, failed <-chan error) error {
	for {
		select {
		case <-signals.ctx.Done():
			d.log.Info("stopping", "cause", context.Cause(signals.ctx), "sessions_end", d.StopSessions)
			return nil
		case <-signals.hangup:
			d.reload()
		case err := <-failed:
			return err
		}
	}
}

// drain accepts nothing any more and waits for the requests under way. A second
// signal makes it hurry.
func (d *daemon) drain(signals *signals) {
	ctx, cancel := context.WithTimeout(context.Background(), drainPatience)
	defer cancel()
	defer context.AfterFunc(signals.hurry, cancel)()
	if err := d.server.Shutdown(ctx); err != nil {
		d.log.Warn("closing connections", "error", err)
	}
}

// reload reads tokens and log level again. What is wrong changes nothing.
func (d *daemon) reload() {
	notifyReloading(d.log)
	defer notify(d.log, sdnotify.SdNotifyReady)
	c, err := d.Reload()
	if err == nil {
		err = d.level.UnmarshalText([]byte(c.Log.Level))
	}
	if err == nil && d.auth.Tokens != nil {
		err = d.auth.Tokens.Reload(d.Config.TokensFile)
	}
	if err != nil {
		d.log.Error("reading the configuration again: everything stays as it was", "error", err)
		return
	}
	d.log.Info("log level and tokens were read again", "level", d.level.Level())
}

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
