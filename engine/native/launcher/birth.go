package launcher

/*
#cgo CFLAGS: -O2 -Wall -Wextra -Werror
*/
import "C"

import (
	"os"

	"golang.org/x/sys/unix"
)

// PID 1 gets these descriptors, counted from 3. birth.c and package agent rely on the
// numbers.
const (
	extraControl = iota // agent.ControlFD
	extraCgroup         // BIRTH_CGROUP_FD in birth.c
	extraProgram        // what PID 1 executes, and then closes
)

// avoidHugePages keeps this process small on a host whose transparent_hugepage is "always",
// and the init stages and agents, which inherit the setting. Otherwise the first variable that
// each of them touches would take 2 MiB, and the time to clear them. Agents undo it for their
// commands.
func avoidHugePages() {
	_ = unix.Prctl(unix.PR_SET_THP_DISABLE, 1, 0, 0, 0) // fails on kernels without huge pages
}

// becomeSubreaper makes every box's PID 1 a child of this process, see birth.c.
func becomeSubreaper() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl(PR_SET_CHILD_SUBREAPER)", err)
	}
	return nil
}
