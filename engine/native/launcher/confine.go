package launcher

import (
	"fmt"
	"os"
)

// ConfineStage forbids user namespaces within the box's (namespaces(7): the files in
// /proc/sys/user govern the user namespace of the process that opens them). The stage is
// root in the box's user namespace and still sees the host's /proc. So clone3, whose flags a
// seccomp filter cannot see, gives a command no user namespace, and without one no other
// namespace either. A second filter for commands that answers clone3 with ENOSYS, as
// Docker's does, would have to be compiled by the kernel for every single command.
func ConfineStage() error {
	const path = "/proc/sys/user/max_user_namespaces"
	if err := os.WriteFile(path, []byte("0"), 0); err != nil {
		return fmt.Errorf("forbidding user namespaces: %w", err)
	}
	return nil
}

// emptyDumps keeps memory out of the box's core dumps (core(5): coredump_filter is
// inherited across fork and execve). It is a second line of defence behind RLIMIT_CORE, for
// hosts where that limit is 0 and cannot be raised to 1, and where core_pattern is a pipe,
// which a limit of 0 does not stop.
func emptyDumps(pid int) error {
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/coredump_filter", pid), []byte("0"), 0); err != nil {
		return fmt.Errorf("emptying core dumps: %w", err)
	}
	return nil
}
