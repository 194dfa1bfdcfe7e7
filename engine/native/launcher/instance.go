package launcher

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/diskroom"
	"github.com/boxd/boxd/internal/leftover"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// The state directory:
//
//	lock             held while an instance is made or dead ones are swept; its content is a kernelProof
//	ids/<n>          symlink to <instance>/<box>, the owner of range n
//	stuck-<instance> what could not be removed of it, and when to retry
//	<instance>/lock  locked as long as the launcher lives
//	<instance>/service     its boxes outlive their launcher: no sweep touches it
//	<instance>/generation  how many launchers a service has had
//	<instance>/boxes/<box>/
//	<instance>/boxes/<box>/born         symlink: its name in cgroups and leases, if that is not its ID, see pool
//	<instance>/boxes/<box>/box.json     service only: the record for the next launcher
//	<instance>/boxes/<box>/kept/<slot>  service only: a slot that an adoption spares
//	<instance>/private/    tmpfs in the launcher's mount namespace: roots being
//	                       built, libcontainer's state
//
// A box's directory is made before its cgroup, its lease and its processes, so
// everything that a killed launcher leaves can be found from here. The cgroup of a
// box is named after its instance too: other instances, of this or another state
// directory, may have a box of the same id, which a sweep must not hit.
const (
	instancePrefix = "run-"
	instanceRandom = 12 // characters of 5 bits each after the prefix
	serviceName    = "service"
)

// instance is the part of the state directory that this launcher owns.
type instance struct {
	state string // the state directory
	dir   string // the instance's own directory in it
	lock  *os.File
}

// openInstance makes an instance, after removing what dead ones left. A service
// takes over the instance of its predecessor, if there is one.
func openInstance(ctx context.Context, state string, host *cgroups.Host, service bool) (*instance, error) {
	if err := makeStateDir(state); err != nil {
		return nil, err
	}
	global, err := lockPatiently(filepath.Join(state, "lock"), lockTime)
	if err != nil {
		return nil, fmt.Errorf("locking state directory: %w", err)
	}
	defer global.Close()
	// Leftovers do not harm new boxes, and a later launcher tries again to remove them.
	failed, err := sweep(ctx, state, host)
	if err != nil {
		failed[""] = err
	}
	if line := leftover.Line(failed); line != "" {
		fmt.Fprintln(os.Stderr, line)
	}
	if service {
		if i, err := findService(state); i != nil || err != nil {
			return i, err
		}
	}
	dir := filepath.Join(state, instancePrefix+strings.ToLower(rand.Text()[:instanceRandom]))
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, fmt.Errorf("making instance directory: %w", err)
	}
	i := &instance{state: state, dir: dir}
	if i.lock, err = lockFile(filepath.Join(dir, "lock"), os.O_CREATE); err == nil {
		err = errors.Join(os.Chmod(dir, 0o711), os.Mkdir(i.boxes(), 0o711))
	}
	if err == nil && service {
		err = os.WriteFile(filepath.Join(dir, serviceName), nil, 0o600)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("making instance directory: %w", err), i.close())
	}
	return i, nil
}

func makeStateDir(state string) error {
	if err := os.MkdirAll(filepath.Join(state, "ids"), 0o711); err != nil {
		return fmt.Errorf("making state directory: %w", err)
	}
	info, err := os.Lstat(state)
	if err != nil {
		return fmt.Errorf("making state directory: %w", err)
	}
	var st unix.Stat_t
	if err := unix.Lstat(state, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: state, Err: err}
	}
	if !info.IsDir() || st.Uid != 0 || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("state directory %q: must be a directory that belongs to root and that only root can write", state)
	}
	// PID 1 of a box, which has no rights on the host, must reach its root beneath state.
	for d := state; ; d = filepath.Dir(d) {
		info, err := os.Stat(d)
		if err != nil {
			return fmt.Errorf("checking state directory: %w", err)
		}
		if info.Mode().Perm()&0o001 == 0 {
			return fmt.Errorf("state directory %q: %q must be searchable by everyone (chmod o+x), or choose another place", state, d)
		}
		if d == filepath.Dir(d) {
			return nil
		}
	}
}

// lockFile opens a file with additional flags and locks it, without waiting.
func lockFile(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW|flags, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, &os.PathError{Op: "flock", Path: path, Err: err}
	}
	return f, nil
}

// lockTime bounds the wait for other launchers that start: each holds the lock while
// it sweeps.
const lockTime = 30 * time.Second

// lockPatiently waits for a lock, at most for limit. It polls, because a flock(2) that
// waits could not be cancelled.
func lockPatiently(path string, limit time.Duration) (*os.File, error) {
	end := time.Now().Add(limit)
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		f, err := lockFile(path, os.O_CREATE)
		if !errors.Is(err, unix.EWOULDBLOCK) {
			return f, err
		}
		if time.Now().After(end) {
			return nil, fmt.Errorf("%q is still held by another launcher after %v: end the one that hangs (fuser -v %s), or choose another state directory", path, limit, path)
		}
		time.Sleep(pause)
	}
}

func (i *instance) boxes() string { return filepath.Join(i.dir, "boxes") }

// owner names a box of this instance in a lease.
func (i *instance) owner(box string) string { return filepath.Base(i.dir) + "/" + box }

// cgroupName names the cgroups of a box of the instance that has directory dir.
// The name has exactly one dot, since ids of boxes have none.
func cgroupName(dir, box string) string {
	return strings.TrimPrefix(filepath.Base(dir), instancePrefix) + "." + box
}

// proofName names the cgroup in which the launcher of an instance tests whether the kernel
// counts sockets. No box's cgroup has such a name.
func proofName(dir string) string {
	return strings.TrimPrefix(filepath.Base(dir), instancePrefix) + "-sockets"
}

// boxOf is the inverse of cgroupName: it returns the box.
func boxOf(cgroup string) string {
	_, box, _ := strings.Cut(cgroup, ".")
	return box
}

func (i *instance) private() string { return filepath.Join(i.dir, "private") }

// mountPrivate mounts a tmpfs that is fast, that no other process sees, and that
// disappears with the launcher.
func (i *instance) mountPrivate() error {
	// The directory of a previous launcher of the service exists; its mount is gone.
	if err := os.Mkdir(i.private(), 0o711); err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("making private directory: %w", err)
	}
	tmpfs, err := linux.NewMount("tmpfs", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV, linux.Option{Key: "mode", Value: "0711"})
	if err != nil {
		return err
	}
	defer tmpfs.Close()
	return linux.MoveMount(tmpfs, nil, i.private())
}

// findService locks the instance of a service whose launcher is dead. It returns nil if
// there is no service. The caller holds the lock of the state directory.
func findService(state string) (*instance, error) {
	found, err := filepath.Glob(filepath.Join(state, instancePrefix+"*", serviceName))
	if err != nil || len(found) == 0 {
		return nil, err
	}
	dir := filepath.Dir(found[0])
	lock, err := lockPatiently(filepath.Join(dir, "lock"), handOverTime)
	if err != nil {
		return nil, fmt.Errorf("state directory %q: another launcher service is at work there: %w", state, err)
	}
	i := &instance{state: state, dir: dir, lock: lock}
	return i, os.MkdirAll(i.boxes(), 0o711) // missing if the launcher was killed while it removed the instance
}

// handOverTime bounds the wait for a launcher that is just ending.
const handOverTime = 2 * time.Second

// whereFull adds to err where to free space if the disk has no room for a file of the
// instance. It leaves other errors alone, such as those about a full file system of a box.
func (i *instance) whereFull(err error) error {
	file, ok := errors.AsType[*fs.PathError](err)
	if !ok || !diskroom.IsFull(file.Err) || !strings.HasPrefix(file.Path, i.dir+"/") {
		return err
	}
	return fmt.Errorf("%w: %w: free space in %s", engine.ErrNoLauncher, err, i.state)
}

// nextGeneration returns the number of this launcher of the instance, from 0, and records it.
func (i *instance) nextGeneration() (int64, error) {
	path := filepath.Join(i.dir, "generation")
	text, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	// The file can hold garbage only after a bug. The time is then as good a number.
	n, perr := strconv.ParseInt(string(text), 10, 32)
	if perr != nil && err == nil {
		n = time.Now().Unix()
	}
	return n, replaceFile(path, strconv.AppendInt(nil, n+1, 10))
}

// slotBits is how many bits of a slot's number count the slots of one launcher. The bits
// above hold the generation.
const slotBits = 31

// empty reports whether no box has left anything. It reads the directory, because a service
// that failed to start does not know its boxes.
func (i *instance) empty() bool {
	entries, err := os.ReadDir(i.boxes())
	return len(entries) == 0 && (err == nil || errors.Is(err, fs.ErrNotExist))
}

// close removes the instance. Its boxes are gone by now.
func (i *instance) close() error {
	// It is not mounted if the launcher failed before that.
	_ = linux.Unmount(i.private(), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	err := os.RemoveAll(i.dir)
	if i.lock != nil {
		i.lock.Close()
	}
	return err
}
