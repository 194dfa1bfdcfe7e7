package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"github.com/boxd/boxd/engine/native/programs"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/sealed"
	"github.com/boxd/boxd/mounts"
	"golang.org/x/sys/unix"
)

// ServiceOptions of [Service] and [Keeper].
type ServiceOptions struct {
	StateDir string
	// ClientUID and ClientGID own the socket: only this user and root can connect.
	ClientUID, ClientGID int
	// ClientUnit is the systemd unit that the client runs as. Empty: the client is the
	// process that root has named, see rpc.NameClient.
	ClientUnit string
	// DataDir is where volumes are kept. Empty: there are no volumes.
	DataDir string
	// MountRoots have the form DIR[:ro][:no-root-owned]. They and those of RootsFile are all
	// that a client that is not root can mount and open of the host.
	MountRoots []string
	// Workspaces is a directory in which the client can also mount what belongs to it.
	// Empty: there is none.
	Workspaces string
	// Runtimes are programs that build boxes.
	Runtimes rpc.Runtimes
	// programs besides this one. Only a process that runs from a sealed copy has been given them.
	programs programs.Files
	// Pool is how many boxes the launcher builds ahead of time at most, up to engine.MaxPool; 0 is none.
	Pool int
	// prepared: the process runs from a sealed copy and in a mount namespace of its own.
	prepared bool
}

// StatusConfig is the exit status after a [ConfigError]: EX_CONFIG of sysexits.h. systemd does not start
// the launcher again then (RestartPreventExitStatus= of boxd-launcher.service).
const StatusConfig = 78

// ConfigError is a mistake in the options of a service or in RootsFile. It stays until somebody mends it.
type ConfigError struct{ Err error }

func (e *ConfigError) Error() string { return e.Err.Error() }
func (e *ConfigError) Unwrap() error { return e.Err }

// configError returns err as a ConfigError, unless it comes from the kernel: then it may pass.
func configError(err error) error {
	if _, ok := errors.AsType[syscall.Errno](err); err == nil || ok {
		return err
	}
	return &ConfigError{err}
}

// ParseService reads the arguments of the roles "launcher --service" and "keeper":
//
//	--state-dir DIR --client USER[:GROUP] [--client-unit UNIT] [--data-dir DIR]
//	[--workspaces DIR] [--mount-root DIR[:ro][:no-root-owned]]... [option of rpc.Runtimes]...
//	[--pool BOXES]
//
// Users and groups are names or numbers. The default group is the user's own. A mistake is a [ConfigError].
func ParseService(args []string) (o ServiceOptions, err error) {
	defer func() { err = configError(err) }()
	o.ClientUID = -1
	for len(args) > 0 {
		switch {
		case args[0] == "--prepared":
			o.prepared, args = true, args[1:]
			continue
		case len(args) == 1:
			return o, fmt.Errorf("option %q: needs a value", args[0])
		case args[0] == programs.Option:
			o.programs, err = programs.Inherited(args[1])
		case args[0] == "--state-dir":
			o.StateDir = args[1]
		case args[0] == "--data-dir":
			o.DataDir = args[1]
		case args[0] == "--client-unit":
			o.ClientUnit = args[1]
		case args[0] == "--workspaces":
			o.Workspaces = args[1]
		case args[0] == "--mount-root":
			_, err = parseRoot(args[1])
			o.MountRoots = append(o.MountRoots, args[1])
		case args[0] == "--pool":
			o.Pool, err = parsePool(args[1])
		case args[0] == "--client":
			o.ClientUID, o.ClientGID, err = parseClient(args[1])
		case o.Runtimes.Parse(args[0], args[1]):
		default:
			return o, fmt.Errorf("option %q: unknown", args[0])
		}
		if err != nil {
			return o, err
		}
		args = args[2:]
	}
	if !filepath.IsAbs(o.StateDir) || o.ClientUID < 0 {
		return o, errors.New("a service needs --state-dir, absolute, and --client")
	}
	if o.ClientUnit != "" && (!strings.HasSuffix(o.ClientUnit, ".service") || strings.Contains(o.ClientUnit, "/")) {
		return o, fmt.Errorf("client unit %q: must be the name of a systemd service, such as boxd.service", o.ClientUnit)
	}
	if o.DataDir != "" && o.DataDir != filepath.Clean("/"+o.DataDir) {
		return o, fmt.Errorf("data directory %q: must be absolute and cleaned", o.DataDir)
	}
	if o.Workspaces != "" && o.Workspaces != filepath.Clean("/"+o.Workspaces) {
		return o, fmt.Errorf("directory of workspaces %q: must be absolute and cleaned", o.Workspaces)
	}
	if len(o.MountRoots) > maxRoots {
		return o, fmt.Errorf("%d mount roots: must be at most %d", len(o.MountRoots), maxRoots)
	}
	return o, nil
}

// overflowID is user nobody. The kernel also shows it for owners that it cannot map.
const overflowID = 65534

// parseClient reads USER[:GROUP].
func parseClient(text string) (uid, gid int, err error) {
	name, group, hasGroup := strings.Cut(text, ":")
	uid, err = strconv.Atoi(name)
	gid = uid
	lookUp := user.Lookup
	if err == nil {
		lookUp = user.LookupId
	}
	if u, lerr := lookUp(name); lerr == nil {
		uid, _ = strconv.Atoi(u.Uid)
		gid, _ = strconv.Atoi(u.Gid)
	} else if err != nil {
		return -1, -1, fmt.Errorf("client %q: %w", text, lerr)
	}
	if hasGroup {
		if gid, err = strconv.Atoi(group); err != nil {
			g, lerr := user.LookupGroup(group)
			if lerr != nil {
				return -1, -1, fmt.Errorf("client %q: %w", text, lerr)
			}
			gid, _ = strconv.Atoi(g.Gid)
		}
	}
	if uid < 0 || gid < 0 {
		return -1, -1, fmt.Errorf("client %q: ids are not negative", text)
	}
	if uid == overflowID {
		return -1, -1, fmt.Errorf("client %q: must not be nobody, because other programs run as that user too: name a user for boxd alone (useradd --system boxd)", text)
	}
	return uid, gid, nil
}

// args is the inverse of ParseService.
func (o *ServiceOptions) args(role ...string) []string {
	args := append(append([]string{"boxd-init"}, role...), "--state-dir", o.StateDir,
		"--client", fmt.Sprintf("%d:%d", o.ClientUID, o.ClientGID))
	if o.ClientUnit != "" {
		args = append(args, "--client-unit", o.ClientUnit)
	}
	if o.DataDir != "" {
		args = append(args, "--data-dir", o.DataDir)
	}
	if o.Workspaces != "" {
		args = append(args, "--workspaces", o.Workspaces)
	}
	for _, root := range o.MountRoots {
		args = append(args, "--mount-root", root)
	}
	if o.Pool > 0 {
		args = append(args, "--pool", strconv.Itoa(o.Pool))
	}
	return append(args, o.Runtimes.Args()...)
}

// roots reads the mount roots. A client that is root has none, and can reach everything.
func (o *ServiceOptions) roots() (mountRoots, error) {
	if o.ClientUID == 0 {
		return nil, nil
	}
	named, err := readRootsFile(RootsFile)
	if err != nil {
		return nil, configError(err)
	}
	roots, err := newRoots(slices.Concat(named, o.MountRoots), o.Workspaces)
	if err != nil {
		return nil, configError(err)
	}
	roots.report(mounts.Owner{UID: o.ClientUID, GID: o.ClientGID})
	return roots, nil
}

// prepare executes the program again, from a sealed copy and in a mount namespace of its
// own. A launcher that is started by its client, or by the keeper, has both already.
func (o *ServiceOptions) prepare() error {
	if o.prepared {
		return nil
	}
	runtime.LockOSThread()
	// The namespace of the thread that executes is that of the process.
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return os.NewSyscallError("unshare(CLONE_NEWNS)", err)
	}
	return executeSealed(append(o.args("launcher", "--service"), "--prepared"))
}

// executeSealed replaces this process with a sealed copy of the program. It returns only
// after an error.
func executeSealed(args []string) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	more, err := programs.Beside(self)
	if err != nil {
		return err
	}
	defer more.Close()
	option, err := more.Keep()
	if err != nil {
		return err
	}
	exe, err := sealed.Copy(self, programs.Init)
	if err != nil {
		return err
	}
	defer exe.Close()
	args = append(args, option...)
	return &os.PathError{Op: "execve", Path: args[0], Err: unix.Exec(linux.FdPath(exe), args, os.Environ())}
}

// listenFD is the descriptor at which systemd and the keeper pass a listening socket
// (sd_listen_fds(3)).
const listenFD = 3

// listen returns the inherited socket, or makes one.
func (o *ServiceOptions) listen() (*net.UnixListener, error) {
	if !o.inherits() {
		return o.makeSocket()
	}
	f := os.NewFile(listenFD, rpc.SocketName)
	defer f.Close()
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("taking the listening socket: %w", err)
	}
	unixListener, ok := l.(*net.UnixListener)
	if !ok {
		l.Close()
		return nil, fmt.Errorf("taking the listening socket: it is of type %T", l)
	}
	return unixListener, nil
}

// inherits reports whether there is a socket at listenFD. The keeper passes keeperPID as
// LISTEN_PID, because it does not know the number of its child beforehand.
func (o *ServiceOptions) inherits() bool {
	pid := os.Getenv("LISTEN_PID")
	return os.Getenv("LISTEN_FDS") == "1" && (pid == strconv.Itoa(os.Getpid()) || pid == keeperPID)
}

const keeperPID = "keeper"

// makeSocket makes the socket in the state directory. It removes an existing one, which
// belongs to a dead launcher: a live one holds the lock of its instance.
func (o *ServiceOptions) makeSocket() (*net.UnixListener, error) {
	if err := makeStateDir(o.StateDir); err != nil {
		return nil, err
	}
	dir, err := linux.Openat2(nil, o.StateDir, unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	path := linux.FdPath(dir) + "/" + rpc.SocketName // the full path may be too long for an address
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("making socket: %w", err)
	}
	old := unix.Umask(0o177)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	unix.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("making socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	if err := os.Lchown(path, o.ClientUID, o.ClientGID); err != nil {
		l.Close()
		return nil, fmt.Errorf("making socket: %w", err)
	}
	return l, nil
}

// unlink removes the socket, if it was made here.
func (o *ServiceOptions) unlink() error {
	if o.inherits() {
		return nil
	}
	return os.Remove(filepath.Join(o.StateDir, rpc.SocketName))
}

// ready tells systemd that clients are served, if it asked for that (sd_notify(3)).
func (o *ServiceOptions) ready() {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return
	}
	if conn, err := net.Dial("unixgram", path); err == nil {
		_, _ = conn.Write([]byte("READY=1"))
		conn.Close()
	}
}
