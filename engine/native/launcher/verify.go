package launcher

import (
	"bufio"
	"fmt"
	"os"
	"strings"
)

// verify reads back from the host's /proc that PID 1 is confined as it was asked
// for, before any command runs: a set-up step that a kernel or a bug turned into
// a no-op must not go unnoticed.
func (l *Launcher) verify(b *box) error {
	status, err := readStatus(b.pid)
	if err != nil {
		return fmt.Errorf("verifying box: %w", err)
	}
	uid := fmt.Sprint(b.lease.Base + agentID)
	all := strings.Join([]string{uid, uid, uid, uid}, "\t")
	for _, want := range []struct{ key, value string }{
		{"Uid", all}, {"Gid", all},
		{"NoNewPrivs", "1"},
		{"Seccomp", "2"},
		{"CapEff", capMask},
	} {
		if got := status[want.key]; got != want.value {
			return fmt.Errorf("verifying box: %s of PID 1 is %q, not %q", want.key, got, want.value)
		}
	}
	// Or nothing at all: /proc shows the first thread, which may be one that gives
	// birth to commands and has renounced what is left.
	if got := status["CapBnd"]; got != capMask && got != noCaps {
		return fmt.Errorf("verifying box: CapBnd of PID 1 is %q, not %q", got, capMask)
	}
	return nil
}

// capMask is agentCaps as in /proc/<pid>/status: bits 5 (KILL), 6 (SETGID),
// 7 (SETUID) and 8 (SETPCAP) of capabilities(7).
const (
	capMask = "00000000000001e0"
	noCaps  = "0000000000000000"
)

func readStatus(pid int) (map[string]string, error) {
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fields := map[string]string{}
	s := bufio.NewScanner(f)
	for s.Scan() {
		if key, value, ok := strings.Cut(s.Text(), ":"); ok {
			fields[key] = strings.TrimSpace(value)
		}
	}
	return fields, s.Err()
}
