package bench

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/bench/report"
)

const (
	idleBoxes      = 50
	manyBoxes      = 500
	parallelBoxes  = 100
	parallelTarget = 500 * time.Millisecond
	memoryTarget   = 1 << 20 // bytes per idle box
)

// idleMemory measures the memory of a box that has run one command and is idle.
func (b *bench) idleMemory(ctx context.Context) {
	const what = "private memory of an idle box"
	use, _, err := b.idle(ctx, idleBoxes)
	if err != nil {
		b.fail(b.current, err)
		return
	}
	g := goal{"≤ 1 MiB", use.total() <= memoryTarget}
	b.value("memory.idle", fmt.Sprintf("%s, of %d", what, idleBoxes), report.Bytes, float64(use.total()), 0, "", g)
	b.value("memory.idle.agent", "… its agent", report.Bytes, float64(use.agent), 0, "", goal{})
	b.value("memory.idle.launcher", "… growth of the launcher", report.Bytes, float64(use.launcher), 0, "", goal{})
	b.value("memory.idle.caller", "… growth of the caller", report.Bytes, float64(use.caller), 0, "", goal{})
}

// manyIdle measures many boxes at once.
func (b *bench) manyIdle(ctx context.Context) {
	what := fmt.Sprintf("%d idle boxes at once", manyBoxes)
	use, took, err := b.idle(ctx, manyBoxes)
	if err != nil {
		b.fail(b.current, err)
		return
	}
	b.times("idle.create", what+", creating all", series{took}, nil, "", goal{"no error", true})
	b.value("idle.memory", what+", private memory of each", report.Bytes, float64(use.total()), 0, "", goal{"≤ 1 MiB", use.total() <= memoryTarget})
	b.value("idle.system", what+", loss of MemAvailable for each", report.Bytes, float64(use.system), 0, "", goal{})
}

// manyParallel creates boxes as fast as possible.
func (b *bench) manyParallel(ctx context.Context) {
	what := fmt.Sprintf("%d boxes created in parallel", parallelBoxes)
	begin := time.Now()
	boxes, err := b.create(ctx, parallelBoxes, parallelBoxes)
	took := time.Since(begin)
	begin = time.Now()
	removeAll(ctx, boxes)
	gone := time.Since(begin)
	if err != nil {
		b.fail("create.parallel", fmt.Errorf("%d made: %w", len(boxes), err))
		return
	}
	b.times("create.parallel", what, series{took}, nil, "", goal{"≤ 0.5 s", took <= parallelTarget})
	b.times("create.parallel.remove", what+", removing them one by one", series{gone}, nil, "", goal{})
}

// use is the memory of a box in bytes.
type use struct{ agent, launcher, caller, system int64 }

func (u use) total() int64 { return u.agent + u.launcher + u.caller }

// idle creates n boxes and runs a command in each. It returns the memory of one box, and how
// long their creation took.
func (b *bench) idle(ctx context.Context, n int) (u use, took time.Duration, err error) {
	before, err := measure()
	if err != nil {
		return u, 0, err
	}
	begin := time.Now()
	boxes, err := b.create(ctx, n, 2*runtime.NumCPU())
	took = time.Since(begin)
	defer removeAll(ctx, boxes)
	for _, box := range boxes {
		if err == nil {
			err = execTrue(ctx, box)
		}
	}
	if err != nil {
		return u, took, err
	}
	after, err := measure()
	if err != nil {
		return u, took, err
	}
	each := func(before, after int64) int64 { return (after - before) / int64(n) }
	return use{
		agent:    each(before.agent, after.agent),
		launcher: each(before.launcher, after.launcher),
		caller:   each(before.caller, after.caller),
		system:   each(after.system, before.system),
	}, took, nil
}

// measure reads the private memory of this process, of the launcher, which is its only
// child, and of the agents, which are children of the launcher.
func measure() (u use, err error) {
	debug.FreeOSMemory() // garbage of earlier rows
	if u.caller, err = private(os.Getpid()); err != nil {
		return u, err
	}
	for _, launcher := range children(os.Getpid()) {
		bytes, err := private(launcher)
		if err != nil {
			return u, err
		}
		u.launcher += bytes
		for _, agent := range children(launcher) {
			bytes, err := private(agent)
			if err != nil {
				return u, err
			}
			u.agent += bytes
		}
	}
	u.system, err = sumFields("/proc/meminfo", "MemAvailable")
	return u, err
}

func private(pid int) (int64, error) {
	return sumFields(fmt.Sprintf("/proc/%d/smaps_rollup", pid), "Private_Clean", "Private_Dirty")
}

// sumFields adds up lines "name: n kB" of a file and returns bytes.
func sumFields(path string, names ...string) (int64, error) {
	f, err := os.Open(path)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	var sum int64
	for s := bufio.NewScanner(f); s.Scan(); {
		key, value, _ := strings.Cut(s.Text(), ":")
		for _, name := range names {
			if key == name {
				n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
				if err != nil {
					return 0, fmt.Errorf("%s: %w", path, err)
				}
				sum += n << 10
			}
		}
	}
	return sum, nil
}

// children lists the processes whose parent is pid. It omits those that end meanwhile.
func children(pid int) []int {
	paths, _ := filepath.Glob("/proc/[0-9]*/stat")
	var list []int
	for _, path := range paths {
		stat, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		// "pid (name) state ppid …"; the name may contain anything.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) > 1 && fields[1] == strconv.Itoa(pid) {
			child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			list = append(list, child)
		}
	}
	return list
}
