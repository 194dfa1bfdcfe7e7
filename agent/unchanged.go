package agent

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/boxd/boxd/agent/wire"
	"golang.org/x/sys/unix"
)

// unchanged checks that a process, which was forked from one that boxd_spawn has started with limits, still has what
// the start of a command would give it. Any process of its user can lower its resource limits
// (prlimit(2)) and raise its oom_score_adj, and what is forked from it inherits both. No other process can
// change the priority, scheduling policy or processors of a zygote, because of its capability (cap_safe_nice in security/commoncap.c).
func unchanged(pid int, limits []wire.Rlimit) error {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return err
	}
	has, err := parseLimits(string(text))
	if err != nil {
		return err
	}
	for resource, now := range has {
		var want unix.Rlimit
		if err := unix.Getrlimit(resource, &want); err != nil {
			return os.NewSyscallError("getrlimit", err)
		}
		for _, l := range limits {
			if int(l.Resource) == resource { // as set_limits in spawn.c
				want.Max = min(l.Hard, want.Max)
				want.Cur = min(l.Soft, want.Max)
			}
		}
		if now != want {
			return fmt.Errorf("resource limit %d is %d:%d, not %d:%d", resource, now.Cur, now.Max, want.Cur, want.Max)
		}
	}
	theirs, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", pid))
	if err != nil {
		return err
	}
	ours, err := os.ReadFile("/proc/self/oom_score_adj")
	if err == nil && !bytes.Equal(ours, theirs) {
		err = fmt.Errorf("oom_score_adj is %q, not %q", theirs, ours)
	}
	return err
}

// parseLimits parses /proc/<pid>/limits: a line for each limit, in the order of their numbers (lnames in fs/proc/base.c).
func parseLimits(text string) ([]unix.Rlimit, error) {
	const numbers = len("Max realtime timeout      ") // of each line, after the name
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	var all []unix.Rlimit
	for _, line := range lines[1:] {
		var two [2]uint64
		fields := strings.Fields(line[min(numbers, len(line)):])
		for i := range two {
			var err error
			switch {
			case i >= len(fields):
				err = strconv.ErrSyntax
			case fields[i] == "unlimited":
				two[i] = math.MaxUint64
			default:
				two[i], err = strconv.ParseUint(fields[i], 10, 64)
			}
			if err != nil {
				return nil, fmt.Errorf("resource limits: line %q: %w", line, err)
			}
		}
		all = append(all, unix.Rlimit{Cur: two[0], Max: two[1]})
	}
	if len(all) < unix.RLIMIT_RTTIME {
		return nil, fmt.Errorf("resource limits: %d lines", len(all))
	}
	return all, nil
}
