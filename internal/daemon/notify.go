package daemon

import (
	"fmt"
	"log/slog"
	"time"

	sdnotify "github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// notify tells the service manager the daemon's state, sd_notify(3). Without a service manager it
// does nothing.
func notify(logger *slog.Logger, state string) {
	if _, err := sdnotify.SdNotify(false, state); err != nil {
		// The service manager does not listen. It finds out by itself.
		logger.Debug("notifying the service manager", "state", state, "error", err)
	}
}

// notifyReloading announces that the configuration is being read again. READY=1 follows.
func notifyReloading(logger *slog.Logger) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		logger.Warn("reading the clock", "error", err)
		return
	}
	notify(logger, fmt.Sprintf("%s\nMONOTONIC_USEC=%d", sdnotify.SdNotifyReloading, now.Nano()/1000))
}

// keepWatchdog calls alive and notifies the service manager's watchdog, twice per interval, until
// quit is closed. Without a watchdog it returns at once.
func keepWatchdog(logger *slog.Logger, alive func(), quit <-chan struct{}) {
	interval, err := sdnotify.SdWatchdogEnabled(false)
	if err != nil {
		logger.Warn("no watchdog", "error", err)
	}
	if err != nil || interval <= 0 {
		return
	}
	ticker := time.NewTicker(interval / 2)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			alive() // if it hangs, the watchdog acts
			notify(logger, sdnotify.SdNotifyWatchdog)
		case <-quit:
			return
		}
	}
}
