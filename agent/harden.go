package agent

import (
	"fmt"
	"os"
	"unsafe"

	"github.com/boxd/boxd/agent/wire"
	"golang.org/x/sys/unix"
)

// limitResources sets the resource limits that the whole box inherits. From outside, the
// launcher could not set them without CAP_SYS_RESOURCE, because root does not own the box's
// user namespace.
func limitResources() error {
	for _, r := range wire.BoxRlimits {
		var now unix.Rlimit
		if err := unix.Getrlimit(int(r.Resource), &now); err != nil {
			return os.NewSyscallError("getrlimit", err)
		}
		// A hard limit cannot be raised: a stricter one stays.
		hard := min(r.Hard, now.Max)
		if err := unix.Setrlimit(int(r.Resource), &unix.Rlimit{Cur: min(r.Soft, hard), Max: hard}); err != nil {
			return os.NewSyscallError("setrlimit", err)
		}
	}
	return nil
}

// harden makes the process unreadable for commands and installs the seccomp program on
// all of its threads. It returns the descriptor that reports the calls which the program
// leaves to the supervisor. Any failure ends the box.
func harden(program []byte) (listener int, err error) {
	if err := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("clearing dumpable: %w", err)
	}
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, fmt.Errorf("setting no_new_privs: %w", err)
	}
	if len(program) == 0 || len(program)%8 != 0 {
		return 0, fmt.Errorf("installing seccomp program of %d bytes: not whole instructions", len(program))
	}
	prog := unix.SockFprog{
		Len:    uint16(len(program) / 8),
		Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(program))),
	}
	// A thread that cannot get the program is an error (TSYNC_ESRCH). Once the supervisor
	// has taken a call, only SIGKILL interrupts it: otherwise a repeated signal, such as
	// Go's SIGURG, would restart the call each time.
	const flags = unix.SECCOMP_FILTER_FLAG_TSYNC | unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH | unix.SECCOMP_FILTER_FLAG_NEW_LISTENER
	const killable = 1 << 5 // SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, Linux 5.19
	fd, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags|killable, uintptr(unsafe.Pointer(&prog)))
	if errno == unix.EINVAL {
		fd, _, errno = unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	}
	if errno != 0 {
		return 0, os.NewSyscallError("installing seccomp program", errno)
	}
	return int(fd), nil
}

// SECBIT_NOROOT and its lock, linux/securebits.h.
const noRootForGood = 1<<0 | 1<<1

// renounce drops privileges of the calling thread that it does not need and its children
// must not have: the bounding set, the privileges of user 0, groups. The child drops the
// effective capabilities, which the thread needs (spawn.c).
func renounce() error {
	groups, err := unix.Getgroups()
	if err != nil || len(groups) != 0 {
		return fmt.Errorf("checking groups: %v: %w", groups, err)
	}
	// In a box that unpacks, a child looks at files as its user before it drops capabilities
	// (see_as_user in spawn.c). So this thread must not use those over files; they take
	// effect when the child's user is 0.
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if err := unix.Capget(&head, &caps[0]); err != nil {
		return os.NewSyscallError("capget", err)
	}
	caps[0].Effective &^= 1<<unix.CAP_CHOWN | 1<<unix.CAP_DAC_READ_SEARCH | 1<<unix.CAP_FOWNER
	if err := unix.Capset(&head, &caps[0]); err != nil {
		return os.NewSyscallError("capset", err)
	}
	// CAP_SETPCAP goes last, because the other steps need it.
	for _, c := range []uintptr{unix.CAP_CHOWN, unix.CAP_DAC_READ_SEARCH, unix.CAP_FOWNER, unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL, unix.CAP_WAKE_ALARM, unix.CAP_SETPCAP} {
		if c == unix.CAP_SETPCAP {
			if err := unix.Prctl(unix.PR_SET_SECUREBITS, noRootForGood, 0, 0, 0); err != nil {
				return os.NewSyscallError("prctl(PR_SET_SECUREBITS)", err)
			}
		}
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return os.NewSyscallError("prctl(PR_CAPBSET_DROP)", err)
		}
	}
	return nil
}
