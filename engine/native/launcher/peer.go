package launcher

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"path"
	"strings"

	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
)

// checkPeer checks whether the process at the other end may use the service. Root may, and
// so may the one process of the client's user that root has named or that runs as the
// client's unit. Any other process of that user may be an attacker's, and a client can ask
// for nearly everything.
func (s *service) checkPeer(sock *net.UnixConn) error {
	peer, err := linux.PeerOf(sock)
	switch {
	case err != nil:
		return fmt.Errorf("identifying the client: %w", err)
	case peer.UID == 0:
		return nil
	case peer.UID != s.ClientUID:
		return fmt.Errorf("uid %d: this launcher serves uid %d", peer.UID, s.ClientUID)
	}
	pidfd, pid, err := linux.PeerProcess(sock)
	if err != nil {
		return fmt.Errorf("identifying the client: %w", err)
	}
	defer pidfd.Close()
	named, err := rpc.ReadClient(s.StateDir)
	if err != nil {
		return fmt.Errorf("reading the name of the client: %w", err)
	}
	ours := named.Is(pid)
	if !ours && s.ClientUnit != "" {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
		if err != nil {
			return fmt.Errorf("identifying the client: %w", err)
		}
		ours = inUnit(string(text), s.ClientUnit)
	}
	// If the process is still there, the pid was its own the whole time.
	if ended, err := linux.HasExited(pidfd, 0); ended || err != nil {
		return errors.Join(errors.New("the process that connected has ended"), err)
	}
	if !ours {
		unit := cmp.Or(s.ClientUnit, "its unit, which the launcher's --client-unit names")
		return fmt.Errorf("uid %d, process %d: this launcher serves one process of that user: run boxd serve as %s, or start it as root", peer.UID, pid, unit)
	}
	return nil
}

// inUnit reports whether cgroups, the content of /proc/<pid>/cgroup, shows that the system's
// service manager started the process as unit: in cgroup2, or in systemd's own hierarchy of
// v1. Only root can move a process to such a cgroup, or make one: cgroups that are delegated
// to users lie below a service (user@1000.service), not below slices alone.
func inUnit(cgroups, unit string) bool {
	for line := range strings.Lines(cgroups) {
		number, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ":")
		controllers, at, _ := strings.Cut(rest, ":")
		if (number != "0" || controllers != "") && controllers != "name=systemd" {
			continue
		}
		if path.Clean(at) != at || !strings.HasPrefix(at, "/") || path.Base(at) != unit {
			continue
		}
		slices := true
		for _, above := range strings.FieldsFunc(path.Dir(at), func(r rune) bool { return r == '/' }) {
			slices = slices && strings.HasSuffix(above, ".slice")
		}
		if slices {
			return true
		}
	}
	return false
}
