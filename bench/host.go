package bench

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"strings"
	"time"

	"github.com/boxd/boxd/bench/report"
	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/internal/version"
	"golang.org/x/sys/unix"
)

// Above these bounds the report warns. A quiet virtual machine with two processors stays below all of
// them: it showed 0 to 1 % busy, no steal, and a spread of 0.3 to 0.6.
const (
	mostBusy   = 5.0 // % of all processors
	mostSteal  = 1.0 // % of the run
	mostSpread = 1.0 // of bare fork+exec: p90 is twice p50
	lookTime   = time.Second
)

// ticks are the processor times of the host since its start, in USER_HZ (proc_stat(5)).
type ticks struct{ all, idle, steal uint64 }

func readTicks() (t ticks, err error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return t, err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	var user, nice, system, idle, iowait, irq, softirq, steal uint64
	if _, err := fmt.Sscanf(line, "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal); err != nil {
		return t, fmt.Errorf("/proc/stat: %q: %w", line, err)
	}
	return ticks{user + nice + system + idle + iowait + irq + softirq + steal, idle + iowait, steal}, nil
}

func share(part, all uint64) float64 { return 100 * float64(part) / float64(max(all, 1)) }

// watch has what was read at the beginning of a run.
type watch struct{ begin ticks }

// examine describes the host, and looks for a second at how busy it is.
func (b *bench) examine(ctx context.Context) (*watch, error) {
	h := &b.report.Host
	h.Version, h.Processors = version.Version, runtime.NumCPU()
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return nil, os.NewSyscallError("uname", err)
	}
	h.Kernel = unix.ByteSliceToString(name.Release[:])
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return nil, err
	}
	if f := strings.Fields(string(load)); len(f) >= 3 {
		h.Load = strings.Join(f[:3], " ")
	}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(info)) {
			key, value, _ := strings.Cut(line, ":")
			switch strings.TrimSpace(key) {
			case "model name":
				h.Model = strings.TrimSpace(value)
			case "flags":
				h.Virtual = strings.Contains(" "+value, " hypervisor")
			}
		}
	}
	if governor, err := os.ReadFile("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"); err == nil {
		h.Governor = strings.TrimSpace(string(governor))
	}
	groups, err := cgroups.Detect()
	if err != nil {
		return nil, fmt.Errorf("finding cgroups: %w", err)
	}
	h.Cgroups = fmt.Sprint(groups.Mode())
	if err := groups.Close(); err != nil {
		return nil, err
	}
	before, err := readTicks()
	if err != nil {
		return nil, err
	}
	select {
	case <-time.After(lookTime):
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	after, err := readTicks()
	all := after.all - before.all
	b.report.Noise.Busy = 100 - share(after.idle-before.idle, all)
	return &watch{after}, err
}

// end judges how noisy the host was.
func (w *watch) end(r *report.Report) error {
	now, err := readTicks()
	if err != nil {
		return err
	}
	n := &r.Noise
	n.Steal = share(now.steal-w.begin.steal, now.all-w.begin.all)
	n.Warnings = []string{}
	warn := func(format string, args ...any) { n.Warnings = append(n.Warnings, fmt.Sprintf(format, args...)) }
	if n.Busy > mostBusy {
		warn("other work used %.0f %% of the processors before the start: compare ratios only, or wait for a quiet moment", n.Busy)
	}
	if n.Steal > mostSteal {
		warn("the hypervisor took %.0f %% of the time away from this machine", n.Steal)
	}
	if bare := r.Row("exec.bare"); bare != nil && bare.P50 > 0 {
		if n.Spread = (bare.P90 - bare.P50) / bare.P50; n.Spread > mostSpread {
			warn("a bare fork+exec took %.1f times its median or longer in a tenth of the samples", 1+n.Spread)
		}
	}
	if g := r.Host.Governor; g != "" && g != "performance" {
		warn("the processors' frequency follows the load (governor %s)", g)
	}
	return nil
}
