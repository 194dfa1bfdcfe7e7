package daemon

import (
	"fmt"
	"os"

	"github.com/boxd/boxd/config"
	"github.com/boxd/boxd/session"
	"golang.org/x/sys/unix"
)

// The daemon has at most this many descriptors open, as counted by TestReadyWithManySessions: for
// each session, which has 5, and 12 for the slots of its next commands while those are kept; in
// addition for each managed process; and for everything else, of which 64 slots that may serve another
// command have 11 each (engine/native/renew.go).
const (
	filesPerSession = 17
	filesPerProcess = 13
	filesBeside     = 256 + 64*11
	// A session with a network has two listeners besides, and at each up to two connections that
	// wait for their turn.
	filesPerNetwork = 6
	// A session that was dialled has spare sockets in its box: spareSockets of engine/native.
	filesPerDialled = 4
)

// filesNeeded returns how many descriptors the daemon can need with c; 0 if that is not limited.
func filesNeeded(c config.Config) uint64 {
	l := c.Policy.Limits
	if l.Sessions < 0 || l.Processes < 0 {
		return 0
	}
	perSession := int64(filesPerSession + filesPerDialled)
	if c.Network == config.NetworkProxy {
		perSession += filesPerNetwork
	}
	previews, published := 0, 0
	if c.Preview.URL != "" {
		previews = 2 * c.HTTP.MaxConnections // one to the client, one to the box
	}
	if ports := c.Policy.Publish.Len(); ports > 0 {
		if l.Ports >= 0 {
			ports = min(ports, int(l.Ports))
		}
		published = ports + 2*session.MaxCallers
	}
	return uint64(perSession*l.Sessions + filesPerProcess*l.Processes +
		int64(c.HTTP.MaxConnections+c.Relay.MaxClients+previews+published) + filesBeside)
}

// filesWarning returns a warning if have descriptors are too few for c, otherwise "".
func filesWarning(have uint64, c config.Config) string {
	need := filesNeeded(c)
	if have >= need {
		return ""
	}
	network := ""
	if c.Network == config.NetworkProxy {
		network = fmt.Sprintf(", besides at most %d for connections of boxes to the network", networkFiles(have, need))
	}
	return fmt.Sprintf("the daemon may open %d files, and limits.sessions, limits.processes, limits.ports, http.max_connections and relay.max_clients together need %d%s: raise LimitNOFILE of its service (ulimit -Hn of the shell that starts it), or lower these limits", have, need, network)
}

// networkFiles returns how many descriptors connections of boxes may use: what the rest of the daemon
// does not need, but at most half of all, and a quarter even if there are too few. Then the rest may find
// none left at its limits, which few daemons reach.
func networkFiles(have, need uint64) int {
	rest := have - min(have, need)
	return int(min(max(rest, have/4), have/2))
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
