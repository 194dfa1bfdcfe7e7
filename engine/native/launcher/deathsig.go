package launcher

import (
	"fmt"
	"os"
	"runtime"
	"strconv"

	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// DieWithLauncher has the kernel kill the calling init stage when the launcher
// ends. Until its last moment the stage would notice by itself, at the end of its
// pipe; but then it blocks in opening the exec fifo, which nobody would ever open
// again from the other side.
//
// It returns when the launcher has sent the first word, its configuration. By
// then the parents of birth.c are gone and the launcher is the parent: its main
// thread, to be exact, whose end is the end of the process (PR_SET_PDEATHSIG(2const)
// counts threads). If the launcher ends just before the call, the stage finds out
// at its pipe. libcontainer keeps the signal across the change of user.
func DieWithLauncher() error {
	fd, err := strconv.Atoi(os.Getenv("_LIBCONTAINER_INITPIPE"))
	if err != nil {
		return fmt.Errorf("finding the launcher's pipe: %w", err)
	}
	pipe := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	err = linux.Retry(func() error {
		_, err := unix.Poll(pipe, -1)
		return err
	})
	if err != nil {
		return os.NewSyscallError("poll", err)
	}
	runtime.LockOSThread() // the thread that libcontainer's stage stays on
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return os.NewSyscallError("prctl(PR_SET_PDEATHSIG)", err)
	}
	return nil
}
