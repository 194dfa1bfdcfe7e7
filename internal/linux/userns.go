//go:build amd64 || arm64

package linux

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cloneArgs is struct clone_args of clone3(2), Linux 5.3 (CLONE_ARGS_SIZE_VER0).
type cloneArgs struct {
	flags, pidfd, childTID, parentTID, exitSignal, stack, stackSize, tls uint64
}

// clone3Exit clones a child that exits at once, and returns its PID or a negative
// errno. The child runs on the caller's stack without touching it, which needs
// CLONE_VM|CLONE_VFORK and cannot be written in Go.
//
//go:noescape
func clone3Exit(args *cloneArgs, size uintptr) int

// NewUserNS creates a user namespace with the given contents of uid_map and
// gid_map (user_namespaces(7)) and returns a descriptor of it, which the caller
// owns. The calling thread needs CAP_SETUID and CAP_SETGID.
//
// A user namespace is created together with a process. Here the process shares the
// caller's memory and exits at once, and the descriptor is opened through the zombie:
// its credentials, and with them the namespace, live until it is reaped. This takes
// a sixth of the time of a fork and exec, and needs no process that waits.
func NewUserNS(uidMap, gidMap string) (*os.File, error) {
	pid, pidfd, err := cloneZombie(unix.CLONE_NEWUSER)
	if err != nil {
		return nil, err
	}
	defer reapZombie(pidfd)
	// The PID cannot be reused before the zombie is reaped, and only reapZombie reaps
	// it: see exitSignal below.
	proc := "/proc/" + strconv.Itoa(pid)
	if err := writeMap(proc+"/uid_map", uidMap); err != nil {
		return nil, err
	}
	if err := writeMap(proc+"/gid_map", gidMap); err != nil {
		return nil, err
	}
	fd, err := retryFd(func() (int, error) {
		return unix.Open(proc+"/ns/user", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: proc + "/ns/user", Err: err}
	}
	return os.NewFile(uintptr(fd), "userns"), nil
}

// NewOwnedUserNS is NewUserNS for a namespace that belongs to owner, a user of the
// calling process's user namespace, instead of the caller. The kernel also charges the
// owner for resources used inside (ucounts: inotify instances, POSIX queues, pending
// signals and timers, locked memory and others), so a namespace with its own owner
// cannot use up root's. The calling process needs CAP_SETUID and CAP_SETGID.
func NewOwnedUserNS(owner int, uidMap, gidMap string) (ns *os.File, err error) {
	err = OnThrowawayThread(func() error {
		// The thread keeps its capabilities when it becomes the owner
		// (SECBIT_NO_SETUID_FIXUP), because some hosts allow user namespaces to
		// privileged processes only.
		const noSetuidFixup = 1 << 2
		if err := unix.Prctl(unix.PR_SET_SECUREBITS, noSetuidFixup, 0, 0, 0); err != nil {
			return os.NewSyscallError("prctl(PR_SET_SECUREBITS)", err)
		}
		const keep = ^uintptr(0)
		// Raw calls, because the functions of package unix change every thread.
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESGID, keep, uintptr(owner), keep); errno != 0 {
			return os.NewSyscallError("setresgid", errno)
		}
		if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(owner), keep); errno != 0 {
			return os.NewSyscallError("setresuid", errno)
		}
		ns, err = NewUserNS(uidMap, gidMap)
		return err
	})
	return ns, err
}

// cloneZombie creates a child in new namespaces that has already exited.
func cloneZombie(namespaces uint64) (pid int, pidfd *os.File, err error) {
	// Pinned, because the kernel writes to this address, which Go does not see as a
	// pointer: otherwise fd could move when the stack grows.
	fd := new(int32)
	var pin runtime.Pinner
	pin.Pin(fd)
	defer pin.Unpin()
	args := &cloneArgs{
		// The child can share memory and descriptors because it uses neither.
		// CLONE_CLEAR_SIGHAND (Linux 5.5): a signal to the process group that
		// arrives between clone and exit must not run Go's handlers in the child.
		flags: namespaces | unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_FILES |
			unix.CLONE_CLEAR_SIGHAND | unix.CLONE_PIDFD,
		pidfd: uint64(uintptr(unsafe.Pointer(fd))),
		// Without an exit signal, the zombie is invisible to wait4 and waitid
		// unless they have __WALL or __WCLONE, and an ignored SIGCHLD does not reap it.
		exitSignal: 0,
	}
	err = Retry(func() error {
		if pid = clone3Exit(args, unsafe.Sizeof(*args)); pid < 0 {
			return unix.Errno(-pid)
		}
		return nil
	})
	if err != nil {
		return 0, nil, fmt.Errorf("making a user namespace: %w", os.NewSyscallError("clone3", err))
	}
	return pid, os.NewFile(uintptr(*fd), "pidfd"), nil
}

// reapZombie waits for the child behind pidfd and closes pidfd.
func reapZombie(pidfd *os.File) {
	Retry(func() error {
		return unix.Waitid(unix.P_PIDFD, int(pidfd.Fd()), nil, unix.WEXITED|unix.WALL, nil)
	})
	pidfd.Close()
}

// writeMap writes an ID map in one write, as the kernel requires.
func writeMap(path, content string) error {
	fd, err := retryFd(func() (int, error) { return unix.Open(path, unix.O_WRONLY|unix.O_CLOEXEC, 0) })
	if err == nil {
		err = Retry(func() error { _, e := unix.Write(fd, []byte(content)); return e })
		unix.Close(fd)
	}
	if err != nil {
		return &os.PathError{Op: "writing id map", Path: path, Err: err}
	}
	return nil
}
