package daemon

import (
	"fmt"
	"os"

	"github.com/boxd/boxd/config"
	"golang.org/x/sys/unix"
)

// How many descriptors the daemon has open at most, as TestReadyWithManySessions counts
// them: for a session, which has 5 and a dozen for the places of its next commands, as long
// as those are kept; for a managed process beside that; and for everything else.
const (
	filesPerSession = 17
	filesPerProcess = 13
	filesBeside     = 256
)

// filesNeeded is how many descriptors all that c allows needs; 0 if there is no limit.
func filesNeeded(c config.Config) uint64 {
	l := c.Policy.Limits
	if l.Sessions < 0 || l.Processes < 0 {
		return 0
	}
	return uint64(filesPerSession*l.Sessions + filesPerProcess*l.Processes +
		int64(c.HTTP.MaxConnections+c.Relay.MaxClients) + filesBeside)
}

// filesWarning is what to say of this many descriptors; empty if there are enough.
func filesWarning(have, need uint64) string {
	if have >= need {
		return ""
	}
	return fmt.Sprintf("the daemon may open %d files, and limits.sessions, limits.processes, http.max_connections and relay.max_clients together need %d: raise LimitNOFILE of its service (ulimit -Hn of who starts it), or lower these limits", have, need)
}

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
