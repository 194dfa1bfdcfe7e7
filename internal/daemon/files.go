package daemon

import (
	"fmt"
	"os"

	"github.com/boxd/boxd/config"
	"golang.org/x/sys/unix"
)

// The daemon has at most this many descriptors open, as counted by TestReadyWithManySessions: for
// each session, which has 5, and 12 for the slots of its next commands while those are kept; in
// addition for each managed process; and for everything else.
const (
	filesPerSession = 17
	filesPerProcess = 13
	filesBeside     = 256
)

// filesNeeded returns how many descriptors the daemon can need with c; 0 if that is not limited.
func filesNeeded(c config.Config) uint64 {
	l := c.Policy.Limits
	if l.Sessions < 0 || l.Processes < 0 {
		return 0
	}
	return uint64(filesPerSession*l.Sessions + filesPerProcess*l.Processes +
		int64(c.HTTP.MaxConnections+c.Relay.MaxClients) + filesBeside)
}

// filesWarning returns a warning if there are too few descriptors, otherwise "".
func filesWarning(have, need uint64) string {
	if have >= need {
		return ""
	}
	return fmt.Sprintf("the daemon may open %d files, and limits.sessions, limits.processes, http.max_connections and relay.max_clients together need %d: raise LimitNOFILE of its service (ulimit -Hn of the shell that starts it), or lower these limits", have, need)
}

// wantedFiles is the limit of descriptors that a daemon sets if root started it. A connection takes
// one, a managed process with readers a few.
const wantedFiles = 1 << 19

// raiseFiles raises the limit of open descriptors as far as this process may, and returns it.
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
