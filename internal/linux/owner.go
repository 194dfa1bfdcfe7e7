package linux

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// AsOwner runs fn with the file system rights of one user and group and no others:
// without supplementary groups and capabilities, and with umask 0. What fn makes
// belongs to them and counts against their quota. It runs on a thread of its own,
// see [OnThrowawayThread]. The calling process needs CAP_SETUID and CAP_SETGID.
func AsOwner(uid, gid uint32, fn func() error) error {
	return OnThrowawayThread(func() error {
		unix.Umask(0)
		if err := becomeOwner(uid, gid); err != nil {
			return fmt.Errorf("taking on user %d and group %d: %w", uid, gid, err)
		}
		return fn()
	})
}

// becomeOwner changes the calling thread alone: the calls of package syscall would
// change all threads.
func becomeOwner(uid, gid uint32) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return os.NewSyscallError("setgroups", errno)
	}
	// These two report no error but the old value (setfsuid(2)): ask again. -1 is no id.
	for _, set := range []struct {
		name string
		trap uintptr
		id   uint32
	}{{"setfsgid", unix.SYS_SETFSGID, gid}, {"setfsuid", unix.SYS_SETFSUID, uid}} {
		_, _, _ = unix.RawSyscall(set.trap, uintptr(set.id), 0, 0)
		if now, _, _ := unix.RawSyscall(set.trap, uintptr(^uint32(0)), 0, 0); uint32(now) != set.id {
			return fmt.Errorf("%s: still %d", set.name, now)
		}
	}
	// With an fsuid of 0 the kernel leaves them all; and CAP_SYS_RESOURCE, which no
	// change of the fsuid takes away, goes beyond any quota.
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	_, _, errno := unix.RawSyscall(unix.SYS_CAPSET, uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(&none[0])), 0)
	runtime.KeepAlive(header)
	runtime.KeepAlive(&none)
	if errno != 0 {
		return os.NewSyscallError("capset", errno)
	}
	return nil
}
