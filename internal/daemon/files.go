package daemon

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// wantedFiles is how many descriptors the daemon may have as root started it: a
// connection is one, a managed process with readers a few.
const wantedFiles = 1 << 19

// raiseFiles raises the limit of open descriptors as far as this process may, and
// returns it.
func raiseFiles() (uint64, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return 0, os.NewSyscallError("getrlimit", err)
	}
	if os.Geteuid() == 0 && limit.Max < wantedFiles {
		// Root may have lost CAP_SYS_RESOURCE, and then stays below the hard limit.
		raised := unix.Rlimit{Cur: wantedFiles, Max: wantedFiles}
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &raised); err == nil {
			return wantedFiles, nil
		}
	}
	raised := unix.Rlimit{Cur: limit.Max, Max: limit.Max}
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &raised); err != nil {
		return limit.Cur, fmt.Errorf("raising the limit of open files from %d to %d: %w", limit.Cur, raised.Cur, err)
	}
	return raised.Cur, nil
}
