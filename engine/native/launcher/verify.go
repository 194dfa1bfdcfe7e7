package launcher

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"github.com/boxd/boxd/internal/linux"
)

// verify reads in the host's /proc whether PID 1 is confined as requested, before any
// command runs: a set-up step that a kernel or a bug turned into a no-op must not go
// unnoticed.
func (l *Launcher) verify(b *box) error {
	defer b.work.begin("verifying it", "", nil)()
	status, err := readStatus(b.pid)
	if err != nil {
		return fmt.Errorf("verifying box: %w", err)
	}
	uid := fmt.Sprint(b.lease.Base + initID(b.spec))
	seccomp := "2"
	if isGVisor(b.spec) {
		seccomp = "0"
	}
	_, capMask := capsOf(b.spec)
	all := strings.Join([]string{uid, uid, uid, uid}, "\t")
	for _, want := range []struct{ key, value string }{
		{"Uid", all}, {"Gid", all}, {"Groups", ""},
		{"NoNewPrivs", "1"},
		{"Seccomp", seccomp},
		// /proc shows the first thread, which runs only the main goroutine. Threads that
		// start commands drop more.
		{"CapInh", capMask}, {"CapPrm", capMask}, {"CapEff", capMask}, {"CapBnd", capMask}, {"CapAmb", capMask},
	} {
		if got, ok := status[want.key]; got != want.value || !ok {
			return fmt.Errorf("verifying box: %s of PID 1 is %q, not %q", want.key, got, want.value)
		}
	}
	if err := b.stillThere(); err != nil {
		return fmt.Errorf("verifying box: %w", err)
	}
	return nil
}

// stillThere checks that PID 1 has not been reaped. It is called after b.pid was used: no
// other process can get the number before PID 1 is reaped, and until then
// pidfd_send_signal(2) succeeds.
func (b *box) stillThere() error {
	if err := linux.PidfdSignal(b.pidfd, 0); err != nil {
		return fmt.Errorf("PID 1 has ended: %w", err)
	}
	return nil
}

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
