package main

import (
	"fmt"
	"os"
	"runtime"
	"strings"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/internal/version"
	"golang.org/x/sys/unix"
)

// host describes what the figures depend on.
type host struct {
	kernel string
	load   string // averages over 1, 5 and 15 minutes when the run began
	mode   cgroups.Mode
}

func examine() (host, error) {
	var h host
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return h, os.NewSyscallError("uname", err)
	}
	h.kernel = unix.ByteSliceToString(name.Release[:])
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return h, err
	}
	if f := strings.Fields(string(load)); len(f) >= 3 {
		h.load = strings.Join(f[:3], " ")
	}
	groups, err := cgroups.Detect()
	if err != nil {
		return h, fmt.Errorf("finding cgroups: %w", err)
	}
	h.mode = groups.Mode()
	return h, groups.Close()
}

func (h host) String() string {
	return fmt.Sprintf("boxd %s, Linux %s, %d CPUs, cgroups %s, load average at the start %s",
		version.Version, h.kernel, runtime.NumCPU(), h.mode, h.load)
}

// createTarget is how long a box may take from its creation to the first exit. On v1
// hierarchies a box needs one more RCU grace period.
func (h host) createTarget() int {
	if h.mode == cgroups.Unified {
		return 12
	}
	return 18
}
