package launcher

import (
	"fmt"
	"os"

	"github.com/boxd/boxd/agent/wire"
	"golang.org/x/sys/unix"
)

// ConfineStage sets what the whole box inherits from the init stage, which is root
// in the box's user namespace and still sees the host's /proc.
//
// No user namespaces within that of the box (namespaces(7): the files in
// /proc/sys/user govern the opener's). So clone3, whose flags a seccomp filter
// cannot see, gives a command no user namespace, and without one no other
// namespace either. A filter for commands alone, which answers clone3 with ENOSYS
// as Docker's does, would have to be compiled by the kernel for every single
// command.
//
// And the resource limits: the launcher could not set them from outside without
// CAP_SYS_RESOURCE, because the box's user namespace is not root's.
func ConfineStage() error {
	const path = "/proc/sys/user/max_user_namespaces"
	if err := os.WriteFile(path, []byte("0"), 0); err != nil {
		return fmt.Errorf("forbidding user namespaces: %w", err)
	}
	for _, r := range wire.BoxRlimits {
		var now unix.Rlimit
		if err := unix.Getrlimit(int(r.Resource), &now); err != nil {
			return os.NewSyscallError("getrlimit", err)
		}
		// A hard limit cannot be raised: what there is is stricter, and stays.
		hard := min(r.Hard, now.Max)
		if err := unix.Setrlimit(int(r.Resource), &unix.Rlimit{Cur: min(r.Soft, hard), Max: hard}); err != nil {
			return os.NewSyscallError("setrlimit", err)
		}
	}
	return nil
}

// emptyDumps keeps memory out of core dumps of the box (core(5): coredump_filter is
// inherited across fork and execve). It is a second line behind RLIMIT_CORE, for
// hosts on which that is 0 and cannot be raised to 1, and whose core_pattern is a
// pipe, which 0 does not stop.
func emptyDumps(pid int) error {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/coredump_filter", pid), []byte("0"), 0); err != nil {
		return fmt.Errorf("emptying core dumps: %w", err)
	}
	return nil
}
