package native

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/version"
	"golang.org/x/sys/unix"
)

// LauncherOptions of [StartLauncher].
type LauncherOptions struct {
	// InitPath is the path of the boxd-init binary; see [Options].
	InitPath string
	// StateDir identifies the service; see [Options]. Empty means DefaultStateDir.
	StateDir string
	// ClientUID and ClientGID own the service's socket. Besides root, the service serves
	// one process of that user; see [AdmitClient]. Zero serves root only.
	ClientUID, ClientGID int
	// DataDir is the directory for volumes. The launcher creates it for root alone; its
	// parent must exist. Empty means that there are no volumes.
	DataDir string
	// MountRoots are the directories of the host that a client other than root may mount
	// and open, with everything below them. Each is written DIR[:ro][:no-root-owned]. The
	// directories that /etc/boxd/launcher.yaml names are allowed as well.
	MountRoots []string
	// Workspaces is a directory of the client. The client may also mount what it owns in
	// there. Empty means none.
	Workspaces string
	// Runtimes are programs that build boxes, besides the launcher.
	Runtimes Runtimes
	// Pool is how many boxes the launcher may build ahead of time, 0 to engine.MaxPool, see [engine.Pooled];
	// 0 is none.
	Pool int
	// Logger receives problems that no call returns as an error; nil discards them.
	Logger *slog.Logger
}

// StartLauncher makes sure that a launcher service runs for the state directory and the
// client's user, and returns the path of its socket. Only root can call it.
//
// A running service of the same version and user is kept if its options are the same, if
// it is serving a client, or if systemd started it. Any other is ended and replaced, and
// its boxes stay; but if one of another version or user is serving a client, the call
// fails with engine.ErrNoLauncher.
//
// The service outlives the caller, and a keeper process restarts it when it dies. End it
// with [Service].Stop.
//
// engine.FieldError: o.Pool.
func StartLauncher(ctx context.Context, o LauncherOptions) (socket string, err error) {
	if err := checkPool(o.Pool); err != nil {
		return "", err
	}
	if os.Geteuid() != 0 {
		return "", fmt.Errorf("%w: uid %d: only root can start it", engine.ErrNoLauncher, os.Geteuid())
	}
	if o.StateDir == "" {
		o.StateDir = DefaultStateDir
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := checkPaths(Options{InitPath: o.InitPath, StateDir: o.StateDir}); err != nil {
		return "", err
	}
	socket = filepath.Join(o.StateDir, SocketName)
	serves, err := o.look(ctx, socket)
	for end := time.Now().Add(clientPatience); errors.Is(err, errHasClient) && time.Now().Before(end); serves, err = o.look(ctx, socket) {
		time.Sleep(lastPause)
	}
	if serves || err != nil {
		return socket, err
	}
	k, err := o.startKeeper()
	if err != nil {
		return "", fmt.Errorf("%w: %w", engine.ErrNoLauncher, err)
	}
	if err := o.awaitService(ctx, socket, k.ended); err != nil {
		_ = k.process.Signal(unix.SIGTERM) // otherwise it retries without end
		<-k.ended
		return "", err
	}
	return socket, nil
}

// errHasClient: a service that would have to be ended is in use.
var errHasClient = errors.New("its client is connected: stop that first")

// clientPatience bounds the wait for the end of a client's connection. A client that has closed it, or has died, can still look
// connected: a process that it was starting holds a copy of the socket until its execve.
const clientPatience = time.Second

// look reports whether the right service runs. It ends a wrong one.
func (o *LauncherOptions) look(ctx context.Context, socket string) (serves bool, err error) {
	sock, err := connectUnix(ctx, socket)
	if err != nil {
		return false, nil // no service listens
	}
	keeper, orphaned, kerr := listenerOf(sock, o.StateDir)
	sock.Close()
	conn, h, err := greetService(ctx, socket)
	if err == nil {
		conn.Close()
	}
	switch {
	case ctx.Err() != nil:
		keeper.Close() // a nil file is fine
		return false, context.Cause(ctx)
	case err == nil && h.Version == version.Version && h.Protocol == rpc.Protocol && h.ClientUID == o.ClientUID && (h.Error == "" || h.Busy):
		same := h.DataDir == o.DataDir && h.Workspaces == o.Workspaces && slices.Equal(h.MountRoots, o.MountRoots) && h.Runtimes == besideInit(o.Runtimes, o.InitPath) && h.Pool == o.Pool
		if h.Busy || !orphaned && (same || keeper == nil) {
			keeper.Close()
			return true, nil
		}
		// No keeper would restart it, or a keeper started it with other directories.
		// (systemd would restart it with the same ones.) It is replaced.
	case h.Busy:
		keeper.Close()
		return false, fmt.Errorf("%w: the launcher of %q is of another version or user (%s, uid %d), and %w", engine.ErrNoLauncher, socket, h.Version, h.ClientUID, errHasClient)
	}
	o.Logger.Info("ending the running launcher", "orphaned", orphaned, "version", h.Version, "uid", h.ClientUID, "error", h.Error)
	launcher, lerr := openOurs(h.PID, o.StateDir)
	return false, errors.Join(kerr, lerr, end(keeper), end(launcher))
}

// listenerOf returns a pidfd of the keeper: the process that created the listening socket
// to which sock is connected (SO_PEERCRED, unix(7)). It is nil if systemd created that
// socket. orphaned reports that the process is gone.
func listenerOf(sock *net.UnixConn, stateDir string) (keeper *os.File, orphaned bool, err error) {
	raw, err := sock.SyscallConn()
	if err != nil {
		return nil, false, err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) {
		cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || cerr != nil {
		return nil, false, errors.Join(err, os.NewSyscallError("getsockopt(SO_PEERCRED)", cerr))
	}
	keeper, err = openOurs(int(cred.Pid), stateDir)
	return keeper, keeper == nil && err == nil && cred.Pid > 1, err
}

// openOurs returns a pidfd of process pid if that is the keeper or the launcher service of
// a state directory, and nil otherwise: the number may have been reused, also by the
// keeper of another directory, or belong to systemd, which may own the socket.
func openOurs(pid int, stateDir string) (*os.File, error) {
	if pid <= 1 {
		return nil, nil
	}
	f, err := linux.PidfdOpen(pid)
	if errors.Is(err, unix.ESRCH) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	args, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	ended, eerr := linux.HasExited(f, 0)
	if err != nil || eerr != nil || ended || !isOurs(strings.Split(string(args), "\x00"), stateDir) {
		f.Close()
		return nil, nil
	}
	return f, nil
}

// isOurs reports whether args is the command line of a keeper or launcher service of a
// state directory.
func isOurs(args []string, stateDir string) bool {
	if len(args) < 3 || args[0] != "boxd-init" || args[1] != "keeper" && (args[1] != "launcher" || args[2] != "--service") {
		return false
	}
	i := slices.Index(args, "--state-dir")
	return i >= 0 && i+1 < len(args) && filepath.Clean(args[i+1]) == filepath.Clean(stateDir)
}

// endPatience is how long an old launcher may take to end after SIGTERM.
const endPatience = 20 * time.Second

// end ends a process. It takes pidfd, which may be nil.
func end(pidfd *os.File) error {
	if pidfd == nil {
		return nil
	}
	defer pidfd.Close()
	for _, sig := range []unix.Signal{unix.SIGTERM, unix.SIGKILL} {
		if err := linux.PidfdSignal(pidfd, sig); err != nil {
			if errors.Is(err, unix.ESRCH) {
				return nil
			}
			return fmt.Errorf("ending the old launcher: %w", err)
		}
		if ended, err := linux.HasExited(pidfd, endPatience); ended || err != nil {
			return err
		}
	}
	return fmt.Errorf("ending the old launcher: it has not ended after %v", 2*endPatience)
}

// keeper is a keeper process that this process started.
type keeper struct {
	process *os.Process
	ended   chan struct{} // closed when it has been reaped
}

// startKeeper starts the keeper detached from this process.
func (o *LauncherOptions) startKeeper() (*keeper, error) {
	exe, more, err := openPrograms(o.InitPath)
	if err != nil {
		return nil, err
	}
	defer exe.Close()
	defer more.Close()
	args := []string{"keeper", "--state-dir", o.StateDir, "--client", strconv.Itoa(o.ClientUID) + ":" + strconv.Itoa(o.ClientGID)}
	if o.DataDir != "" {
		args = append(args, "--data-dir", o.DataDir)
	}
	if o.Workspaces != "" {
		args = append(args, "--workspaces", o.Workspaces)
	}
	if o.Pool > 0 {
		args = append(args, "--pool", strconv.Itoa(o.Pool))
	}
	for _, root := range o.MountRoots {
		args = append(args, "--mount-root", root)
	}
	args = append(args, besideInit(o.Runtimes, o.InitPath).Args()...)
	cmd, err := startInit(exe, more.List(), 0, append(args, more.Args(3)...)...)
	if err != nil {
		return nil, fmt.Errorf("starting keeper %q: %w", o.InitPath, err)
	}
	k := &keeper{process: cmd.Process, ended: make(chan struct{})}
	go func() { // until the keeper or this process ends
		defer close(k.ended)
		_ = cmd.Wait()
	}()
	return k, nil
}

// awaitService waits until the launcher answers.
func (o *LauncherOptions) awaitService(ctx context.Context, socket string, ended <-chan struct{}) error {
	for {
		err := answers(ctx, socket)
		if err == nil || !errors.Is(err, errNotNow) {
			return err
		}
		select {
		case <-time.After(firstPause):
		case <-ended:
			// Another caller's keeper may have been faster.
			if answers(ctx, socket) == nil {
				return nil
			}
			return fmt.Errorf("%w: its keeper ended at once; stderr says why: %w", engine.ErrNoLauncher, err)
		case <-ctx.Done():
			return err
		}
	}
}

// answers checks that the right launcher listens, even if it serves another client.
func answers(ctx context.Context, socket string) error {
	conn, h, err := greetService(ctx, socket)
	if err != nil {
		return err
	}
	conn.Close()
	if h.Busy {
		h.Error = ""
	}
	return checkHello(h, socket)
}
