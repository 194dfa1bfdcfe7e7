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
	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/config"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/mcp"
	"github.com/boxd/boxd/mcp/gateway"
	"github.com/boxd/boxd/session"
	"github.com/boxd/boxd/webhook"
)

// Options of [Run].
type Options struct {
	// Config is a valid configuration.
	Config config.Config
	// ConfigFile is the file that Config was read from; empty: none.
	ConfigFile string
	// Reload reads the configuration again, at SIGHUP.
	Reload  func() (config.Config, error)
	Version string
	// InitPath is the path of boxd-init, and InitError says why there is none. Only a daemon that
	// starts the launcher needs it.
	InitPath  string
	InitError error
	// StopSessions ends all sessions, and the launcher service, when the daemon stops.
	StopSessions bool
	// Log gets the log.
	Log io.Writer
}

// statusPanicked is the exit status of a Go program that panicked.
const statusPanicked = 2

// daemon holds the parts that Run opens, in this order.
type daemon struct {
	Options
	level   *slog.LevelVar
	log     *slog.Logger
	root    bool // started as root
	account account
	dirs    dirs

	lock  *os.File
	files uint64 // that this process may have open
	auth  api.Auth
	doors []door
	// previews is the listener of previews; the zero value: none.
	previews door
	// warnings are shown in the status.
	warnings []string
	service  *native.Service
	// ownLauncher means that this daemon, or an earlier one, started the launcher service.
	ownLauncher bool
	landlock    int // version that confines this process; 0: none

	audit    *audit.Log
	images   imageWork
	webhooks *webhook.Sender // of sessions, which close it
	sessions *session.Manager
	langbot  langbotDoors
	mcp      *mcp.Door        // nil: it is not served
	gateway  *gateway.Gateway // nil: no servers are configured
	server   *api.Server
	checked  lastCheck[struct{}]
	examined lastCheck[apitypes.Doctor]
}

// Run runs the daemon. It returns nil after SIGTERM or SIGINT, when everything is closed, or an error
// if it cannot serve.
func Run(o Options) (err error) {
	d := &daemon{Options: o, level: new(slog.LevelVar), root: os.Geteuid() == 0}
	d.dirs = dirs{state: o.Config.StateDir, runtime: o.Config.RuntimeDir}
	if err := d.level.UnmarshalText([]byte(o.Config.Log.Level)); err != nil {
		return fmt.Errorf("log level: %w", err)
	}
	d.log = NewLogger(o.Log, o.Config.Log.Format, d.level)
	catchStandardLog(d.log)
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

// logPanic, deferred, writes a panic to the log and exits. To go on after half a change would be
// worse, and the next daemon takes everything over.
func logPanic(log *slog.Logger, exit func(status int)) {
	if p := recover(); p != nil {
		log.Error("the daemon panicked", "panic", fmt.Sprint(p), "stack", string(debug.Stack()))
		exit(statusPanicked)
	}
}

// openAsStarted opens what may need root. It reads nothing that clients can influence.
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
	if d.files, err = raiseFiles(); err != nil {
		d.log.Warn("limit of open files", "error", err)
	}
	if w := filesWarning(d.files, d.Config); w != "" && err == nil {
		d.log.Warn(w)
		d.warnings = append(d.warnings, w)
	}
	if !d.root {
		return nil
	}
	return d.startLauncher(ctx)
}

// findAccount sets the account that the daemon serves as.
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
		DataDir: dataDir, MountRoots: roots, Workspaces: d.dirs.workspaces(), Runtimes: Runtimes(d.Config.Programs), Pool: d.Config.Pool, Logger: d.log,
	})
	if err != nil {
		return fmt.Errorf("starting the launcher service: %w", err)
	}
	d.ownLauncher = true
	// The launcher serves this process, even after it has dropped root, and no other process of
	// its user.
	return native.AdmitClient(d.dirs.runtime, os.Getpid())
}

// Runtimes returns the programs that a configuration names for the launcher.
func Runtimes(p config.Programs) native.Runtimes {
	return native.Runtimes{OCI: p.OCI.Runtime, GVisor: p.OCI.GVisor, ContainerdAddress: p.Containerd.Address, ContainerdRuntime: p.Containerd.Runtime}
}

// checkRoots refuses mount roots that the launcher's command line cannot express.
func checkRoots(roots []string) error {
	for _, root := range roots {
		if strings.Contains(root, ":") {
			return &engine.FieldError{Field: "allowed_mount_roots", Value: spec.Quote(root), Rule: "must not contain a colon, which the launcher takes for the beginning of an option"}
		}
	}
	return nil
}

// launcherPatience bounds the wait for a launcher, which adopts its boxes first.
const launcherPatience = 60 * time.Second

// dropRoot gives up root and checks that there is no way back.
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
