package daemon

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"strings"
	"time"

	"github.com/boxd/boxd/api"
	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/config"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/session"
)

// Options of [Run].
type Options struct {
	// Config was validated.
	Config config.Config
	// ConfigFile is where it was read from; empty: it was not.
	ConfigFile string
	// Reload reads the configuration again; it is called at SIGHUP.
	Reload  func() (config.Config, error)
	Version string
	// InitPath is boxd-init, or InitError why there is none. Only a daemon that
	// starts the launcher needs it.
	InitPath  string
	InitError error
	// StopSessions ends all sessions, and the launcher service, when the daemon is
	// stopped.
	StopSessions bool
	// Log gets the log.
	Log io.Writer
}

// statusPanicked is the exit status of a daemon that panicked, as Go has it.
const statusPanicked = 2

// daemon is what Run puts together. Its fields are set in this order.
type daemon struct {
	Options
	level   *slog.LevelVar
	log     *slog.Logger
	root    bool // it was started as root
	account account
	dirs    dirs

	lock  *os.File
	auth  api.Auth
	doors []door
	// warnings are what status says beside whether boxd can serve.
	warnings []string
	service  *native.Service
	// ownLauncher: this daemon started the launcher service, or found one that an
	// earlier daemon had started.
	ownLauncher bool
	landlock    int // version that confines this process; 0: none

	audit    *audit.Log
	sessions *session.Manager
	langbot  langbotDoors
	server   *api.Server
	checked  healthCheck
}

// Run is the daemon: it returns after SIGTERM or SIGINT once all is closed, or
// with the reason why it cannot serve.
func Run(o Options) (err error) {
	d := &daemon{Options: o, level: new(slog.LevelVar), root: os.Geteuid() == 0}
	d.dirs = dirs{state: o.Config.StateDir, runtime: o.Config.RuntimeDir}
	if err := d.level.UnmarshalText([]byte(o.Config.Log.Level)); err != nil {
		return fmt.Errorf("log level: %w", err)
	}
	d.log = NewLogger(o.Log, o.Config.Log.Format, d.level)
	defer logPanic(d.log, os.Exit)
	signals := watchSignals()
	defer signals.stop()
	defer func() { err = errors.Join(err, d.close()) }()
	if err := d.openAsStarted(signals.ctx); err != nil {
		return err
	}
	if err := d.openUnprivileged(signals.ctx); err != nil {
		return err
	}
	return d.serve(signals)
}

// logPanic, deferred, writes a panic to the log and exits. The next daemon takes over
// all there was: to go on with half a change would be worse.
func logPanic(log *slog.Logger, exit func(status int)) {
	if p := recover(); p != nil {
		log.Error("the daemon panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		exit(statusPanicked)
	}
}

// openAsStarted does what may need root, and nothing that clients have a say in.
func (d *daemon) openAsStarted(ctx context.Context) (err error) {
	if err := d.findAccount(); err != nil {
		return err
	}
	if err := d.dirs.makeState(d.root, d.account); err != nil {
		return err
	}
	if d.lock, err = lockState(d.dirs.state, d.account); err != nil {
		return err
	}
	if err := d.openDoors(); err != nil {
		return err
	}
	files, err := raiseFiles()
	if err != nil {
		d.log.Warn("limit of open files", "error", err)
	}
	if w := filesWarning(files, filesNeeded(d.Config)); w != "" && err == nil {
		d.log.Warn(w)
		d.warnings = append(d.warnings, w)
	}
	if !d.root {
		return nil
	}
	return d.startLauncher(ctx)
}

// findAccount says as whom to serve.
func (d *daemon) findAccount() (err error) {
	if d.root {
		d.account, err = lookupAccount(d.Config.User, d.dirs.state)
		return err
	}
	d.account = account{uid: os.Getuid(), gid: os.Getgid()}
	if err := refuseNobody(d.Config.User, d.account.uid); err != nil || d.Config.User == "" {
		return err
	}
	if wanted, err := lookupAccount(d.Config.User, d.dirs.state); err != nil || wanted.uid != d.account.uid {
		return errors.Join(err, fmt.Errorf("user %q: only root can become another user, and this is user %d", d.Config.User, d.account.uid))
	}
	return nil
}

// startLauncher starts the launcher service, unless one runs already.
func (d *daemon) startLauncher(ctx context.Context) error {
	if d.InitError != nil {
		return d.InitError
	}
	dataDir, err := d.dirs.volumes()
	if err != nil {
		return err
	}
	roots := d.Config.MountRoots()
	if err := checkRoots(roots); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, launcherPatience)
	defer cancel()
	_, err = native.StartLauncher(ctx, native.LauncherOptions{
		InitPath: d.InitPath, StateDir: d.dirs.runtime, ClientUID: d.account.uid, ClientGID: d.account.gid,
		DataDir: dataDir, MountRoots: roots, Workspaces: d.dirs.workspaces(), Logger: d.log,
	})
	if err != nil {
		return fmt.Errorf("starting the launcher service: %w", err)
	}
	d.ownLauncher = true
	// It is this process that the launcher serves, also when it is root no longer: not
	// whoever has its user.
	return native.AdmitClient(d.dirs.runtime, os.Getpid())
}

// checkRoots refuses mount roots that the launcher's command line cannot say.
func checkRoots(roots []string) error {
	for _, root := range roots {
		if strings.Contains(root, ":") {
			return &engine.FieldError{Field: "allowed_mount_roots", Value: spec.Quote(root), Rule: "must not contain a colon, which the launcher takes for the beginning of an option"}
		}
	}
	return nil
}

// launcherPatience bounds the wait for a launcher that adopts its boxes first.
const launcherPatience = 60 * time.Second

// dropRoot leaves no way back to root, and checks that.
func (d *daemon) dropRoot() error {
	if d.root {
		if err := become(d.account); err != nil {
			return fmt.Errorf("becoming user %d: %w", d.account.uid, err)
		}
	}
	if err := renounce(); err != nil {
		return fmt.Errorf("dropping privileges: %w", err)
	}
	if err := verify(os.Getuid(), os.Getgid()); err != nil {
		return fmt.Errorf("privileges were not dropped: %w", err)
	}
	d.log.Info("dropped privileges", "user", d.account.name, "uid", os.Getuid(), "gid", os.Getgid(), "dedicated", d.account.dedicated)
	return nil
}
