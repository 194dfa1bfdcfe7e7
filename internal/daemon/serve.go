package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync"
	"time"

	sdnotify "github.com/coreos/go-systemd/v22/daemon"
)

// A graceful stop takes at most drainPatience for requests in progress, including commands, and then
// closePatience for sessions and the launcher.
const (
	drainPatience = 20 * time.Second
	closePatience = 30 * time.Second
)

// serve answers requests until a signal arrives or a listener fails.
func (d *daemon) serve(signals *signals) error {
	var serving sync.WaitGroup
	failed := make(chan error, len(d.doors)+2)
	for _, door := range d.doors {
		d.log.Info("listening", "network", door.Addr().Network(), "address", door.Addr().String(), "tls", door.tls != nil)
		serving.Go(func() {
			if err := d.server.Serve(door.Listener, door.tls); err != nil && !errors.Is(err, net.ErrClosed) {
				failed <- fmt.Errorf("serving %s: %w", door.Addr(), err)
			}
		})
	}
	d.doors = nil // the server closes them
	if l := d.langbot.listener; l != nil {
		d.log.Info("listening", "protocol", "langbot", "network", l.Addr().Network(), "address", l.Addr().String())
		serving.Go(func() {
			if err := d.langbot.tcp.Serve(d.langbot.listener, nil); err != nil {
				failed <- fmt.Errorf("serving LangBot's protocol: %w", err)
			}
		})
	}
	if l := d.previews; l.Listener != nil {
		d.log.Info("listening", "protocol", "previews", "network", l.Addr().Network(), "address", l.Addr().String(), "tls", l.tls != nil)
		serving.Go(func() {
			if err := d.server.ServePreviews(l.Listener, l.tls); err != nil && !errors.Is(err, net.ErrClosed) {
				failed <- fmt.Errorf("serving previews: %w", err)
			}
		})
	}
	if pool := d.Config.Policy.Publish; pool.Len() > 0 {
		d.log.Info("sessions can publish ports", "address", pool.Address.String(), "ports", pool.String())
		if !pool.Address.IsLoopback() {
			d.log.Warn("published ports are open to other hosts, without a login: publish.address is not a loopback address", "address", pool.Address.String())
		}
	}
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

// drain stops accepting connections and waits for requests in progress. A second signal ends the
// wait.
func (d *daemon) drain(signals *signals) {
	ctx, cancel := context.WithTimeout(context.Background(), drainPatience)
	defer cancel()
	defer context.AfterFunc(signals.hurry, cancel)()
	// Connections of LangBot's protocol do not end by themselves, also on the API's socket.
	if d.gateway != nil { // its requests have nothing to wait for when relays end
		d.gateway.Close()
	}
	if err := errors.Join(d.langbot.shutdown(ctx), d.server.Shutdown(ctx)); err != nil {
		d.log.Warn("closing connections", "error", err)
	}
}

// reload reads the tokens and the log level again. If anything is wrong, nothing changes.
func (d *daemon) reload() {
	notifyReloading(d.log)
	defer notify(d.log, sdnotify.SdNotifyReady)
	c, err := d.Reload()
	if errors.Is(err, fs.ErrPermission) && d.landlock != 0 {
		err = fmt.Errorf("%w: restart boxd if the file was moved", err)
	}
	if err == nil && c.TokensFile != d.Config.TokensFile {
		err = fmt.Errorf("tokens_file is %q now and was %q: restart boxd, which can only read the file that it started with", c.TokensFile, d.Config.TokensFile)
	}
	if err == nil {
		err = d.level.UnmarshalText([]byte(c.Log.Level))
	}
	if err == nil && d.auth.Tokens != nil {
		err = d.auth.Tokens.Reload(d.Config.TokensFile)
	}
	if err != nil {
		d.log.Error("reloading the configuration: nothing was changed", "error", err)
		return
	}
	d.log.Info("reloaded log level and tokens", "level", d.level.Level())
}

// close closes what Run has opened. Boxes keep running without daemon and launcher.
func (d *daemon) close() (err error) {
	ctx, cancel := context.WithTimeout(context.Background(), closePatience)
	defer cancel()
	for _, door := range d.doors {
		door.Close()
	}
	if d.previews.Listener != nil {
		d.previews.Close() // an error if the server has closed it already
	}
	if d.mcp != nil {
		d.mcp.Close()
	}
	err = d.langbot.close()
	if d.sessions != nil {
		err = errors.Join(err, d.sessions.Close(ctx, d.StopSessions))
	}
	err = errors.Join(err, d.images.close())
	if d.service != nil {
		stop := d.service.Close
		if d.ownLauncher { // no service manager stops it, and without a daemon it has nothing to do
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
