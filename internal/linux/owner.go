package linux

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// AsOwner runs fn with only the file system rights of one user and group: without
// supplementary groups or capabilities, and with umask 0. Files that fn creates belong
// to them and count against their quota. fn runs on its own thread, see
// [OnThrowawayThread]. The calling process needs CAP_SETUID and CAP_SETGID.
func AsOwner(uid, gid uint32, fn func() error) error {
	return OnThrowawayThread(func() error {
		unix.Umask(0)
		if err := becomeOwner(uid, gid); err != nil {
			return fmt.Errorf("taking on user %d and group %d: %w", uid, gid, err)
		}
		return fn()
	})
}

// becomeOwner changes only the calling thread. It makes raw system calls because the
// functions of package syscall change all threads.
func becomeOwner(uid, gid uint32) error {
	if _, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0); errno != 0 {
		return os.NewSyscallError("setgroups", errno)
	}
	// These two return the old value instead of an error (setfsuid(2)), so ask again with
	// the invalid ID -1.
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
	// Drop all capabilities. If the fsuid is 0, the kernel has left them all; and
	// CAP_SYS_RESOURCE, which no change of the fsuid drops, overrides quotas.
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
