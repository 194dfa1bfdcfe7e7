package daemon

import (
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// dropCapabilities empties the permitted, effective and inheritable sets of all
// threads, capset(2). What a change of user leaves is the inheritable set.
func dropCapabilities() error {
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	err := onAllThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(&none[0])))
	runtime.KeepAlive(header)
	runtime.KeepAlive(&none)
	return os.NewSyscallError("capset", err)
}

// rawSetgroups sets the supplementary groups of the calling thread alone.
func rawSetgroups(gids []uint32) error {
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(gids)), uintptr(unsafe.Pointer(unsafe.SliceData(gids))), 0)
	if errno != 0 {
		return os.NewSyscallError("setgroups", errno)
	}
	return nil
}
