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

// clone3Exit clones a child that does nothing but exit, and returns its process
// id or a negative errno. The child runs on the caller's stack without touching
// it, which needs CLONE_VM|CLONE_VFORK and cannot be written in Go.
//
//go:noescape
func clone3Exit(args *cloneArgs, size uintptr) int

// NewUserNS makes a user namespace with the given contents of uid_map and
// gid_map (user_namespaces(7)) and returns a descriptor of it, owned by the
// caller. The calling thread needs CAP_SETUID and CAP_SETGID.
//
// A user namespace is born with a process. Here that process exits at once, in
// the caller's memory, and the namespace is taken from the zombie: its
// credentials, and with them the namespace, live until it is reaped. That costs
// a sixth of a fork and exec, and no process ever waits to be told to go on.
func NewUserNS(uidMap, gidMap string) (*os.File, error) {
	pid, pidfd, err := cloneZombie(unix.CLONE_NEWUSER)
	if err != nil {
		return nil, err
	}
	defer reapZombie(pidfd)
	// The number cannot be reused before the zombie is reaped, and nobody else
	// reaps it: see exitSignal below.
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

// NewOwnedUserNS is NewUserNS for a namespace that belongs to the user owner of the
// calling process's user namespace, and not to the caller. The kernel charges what
// is used inside to the owner as well (ucounts: inotify instances, POSIX queues,
// pending signals and timers, locked memory …): with an owner of its own, a
// namespace cannot use up root's. The calling process needs CAP_SETUID and
// CAP_SETGID.
func NewOwnedUserNS(owner int, uidMap, gidMap string) (ns *os.File, err error) {
	err = OnThrowawayThread(func() error {
		// The thread keeps its capabilities when it becomes the owner
		// (SECBIT_NO_SETUID_FIXUP): hosts may reserve user namespaces for
		// privileged processes.
		const noSetuidFixup = 1 << 2
		if err := unix.Prctl(unix.PR_SET_SECUREBITS, noSetuidFixup, 0, 0, 0); err != nil {
			return os.NewSyscallError("prctl(PR_SET_SECUREBITS)", err)
		}
		const keep = ^uintptr(0)
		// The plain calls: those of package unix change every thread.
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

// cloneZombie makes a child in new namespaces that has exited already.
func cloneZombie(namespaces uint64) (pid int, pidfd *os.File, err error) {
	// Pinned, because the kernel writes to its address, which Go does not see as
	// a pointer: on a stack that grows it would move.
	fd := new(int32)
	var pin runtime.Pinner
	pin.Pin(fd)
	defer pin.Unpin()
	args := &cloneArgs{
		// The child shares memory and descriptors because it uses neither.
		// CLONE_CLEAR_SIGHAND (Linux 5.5): a signal to the process group that
		// falls between clone and exit must not run Go's handlers in the child.
		flags: namespaces | unix.CLONE_VM | unix.CLONE_VFORK | unix.CLONE_FILES |
			unix.CLONE_CLEAR_SIGHAND | unix.CLONE_PIDFD,
		pidfd: uint64(uintptr(unsafe.Pointer(fd))),
		// With no exit signal the zombie is invisible to wait4 and waitid
		// without __WALL or __WCLONE, and an ignored SIGCHLD does not reap it.
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

// writeMap writes an id map in one write, as the kernel demands.
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
