package native_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/testutil"
)

// The resolution of receipts, in new and in renewed slots, see cgroups.SlotStats.Renew.
const (
	// cpuResolution is what a command may use after the kernel has last looked, one tick with CONFIG_HZ=100.
	cpuResolution = 10 * time.Millisecond
	// splitResolution is how far the split into user and system time may be off: what the slot may have served
	// before, with CONFIG_HZ=250.
	splitResolution  = 50 * time.Millisecond
	memoryResolution = 1 << 20
)

// meter is a box with the kernel's count of the CPU time of all its commands.
type meter struct {
	*testing.T
	box  engine.Box
	stat string
}

func newMeter(t *testing.T, limits engine.Limits) *meter {
	t.Helper()
	testutil.RequireRoot(t)
	eng, err := native.Start(t.Context(), native.Options{InitPath: initPath, StateDir: stateDir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { eng.Close() })
	box, err := eng.Create(t.Context(), engine.Spec{Limits: limits})
	if err != nil {
		t.Fatal(err)
	}
	m := &meter{T: t, box: box}
	host, err := cgroups.Detect()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	if root := host.Mountpoint(""); root != "" {
		found, err := filepath.Glob(root + "/boxd/*." + box.ID() + "/work/cpu.stat")
		if err != nil || len(found) != 1 {
			t.Fatalf("cpu.stat of box %s: %q, %v", box.ID(), found, err)
		}
		m.stat = found[0]
	}
	return m
}

// used returns the CPU time of all commands of the box, as far as the kernel has counted it.
func (m *meter) used() time.Duration {
	m.Helper()
	text, err := os.ReadFile(m.stat)
	if err != nil {
		m.Fatal(err)
	}
	var usec int64
	if _, err := fmt.Sscanf(string(text), "usage_usec %d", &usec); err != nil {
		m.Fatalf("%q: %v", text, err)
	}
	return time.Duration(usec) * time.Microsecond
}

// run runs a command, and reports whether it was in a renewed slot.
func (m *meter) run(args ...string) (r engine.Result, renewed bool) {
	m.Helper()
	p, r := m.start(args...)
	return r, native.InRenewedSlot(p)
}

// runNew is run in a new slot.
func (m *meter) runNew(args ...string) engine.Result {
	m.Helper()
	for {
		native.DropEndedSlots(m.box)
		r, renewed := m.run(args...)
		if !renewed { // otherwise the slot of the command before was given back after the line above
			return r
		}
	}
}

// start runs a command to its end.
func (m *meter) start(args ...string) (engine.Process, engine.Result) {
	m.Helper()
	p, err := m.box.Start(m.Context(), engine.Command{Args: args})
	if err != nil {
		m.Fatalf("%q: %v", args, err)
	}
	r, err := p.Wait()
	if err != nil {
		m.Fatalf("%q: %v", args, err)
	}
	return p, r
}

// renews reports whether this host has what renewing a slot needs.
func renews(t *testing.T) bool {
	t.Helper()
	host, err := cgroups.Detect()
	if err != nil {
		t.Fatal(err)
	}
	defer host.Close()
	memory, pids := host.Mountpoint("memory"), host.Mountpoint("pids")
	return memory != "" && pids != "" && host.Mountpoint("") != "" && has(memory+"/boxd/memory.memsw.usage_in_bytes") && has(pids+"/boxd/pids.peak")
}

func has(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// randomCommand returns a command that does one thing, and how many processes and threads it has at most.
func randomCommand(r *rand.Rand) (args []string, least, most int64) {
	sh := func(format string, a ...any) []string { return []string{"sh", "-c", fmt.Sprintf(format, a...)} }
	dd := func(format string, a ...any) []string {
		return append([]string{"dd", "status=none", "if=/dev/zero"}, strings.Fields(fmt.Sprintf(format, a...))...)
	}
	switch r.IntN(14) {
	case 0, 1, 2, 3:
		return []string{"true"}, 1, 1
	case 4:
		return sh("i=0; while [ $i -lt %d ]; do i=$((i+1)); done", r.IntN(20_000)), 1, 1
	case 5:
		return dd("of=/dev/null bs=1 count=%d", r.IntN(20_000)), 1, 1
	case 6:
		return dd("of=/dev/null bs=%dk count=1", 1+r.IntN(24<<10)), 1, 1
	case 7: // stays charged until the file is removed
		return dd("of=/tmp/%d bs=%dk count=1", r.IntN(3), 1+r.IntN(2<<10)), 1, 1
	case 8:
		return []string{"rm", "-f", fmt.Sprintf("/tmp/%d", r.IntN(3))}, 1, 1
	case 9:
		return sh("true & true & wait"), 2, 3
	case 10: // left behind, and killed
		return sh("sleep 1000 & exit 0"), 2, 2
	case 11:
		return []string{"bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/9"}, 1, 1
	case 12:
		return sh("exit %d", r.IntN(100)), 1, 1
	}
	return sh("kill -SEGV $$"), 1, 1
}

// TestReceiptsOfRenewedSlots compares receipts of random commands in new and in renewed slots with each other, and
// with what the kernel counts for all commands of the box together.
func TestReceiptsOfRenewedSlots(t *testing.T) {
	rounds := 60
	if testutil.Full() {
		rounds = 3000
	}
	m := newMeter(t, engine.Limits{Memory: 128 << 20, PIDs: 30})
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	renewed, lost := 0, map[bool][]time.Duration{}
	peaks := map[bool][]int64{}
	for range rounds {
		args, least, most := randomCommand(r)
		freshFirst := r.IntN(2) == 0
		var peak [2]int64
		for i := range 2 {
			if freshFirst == (i == 0) {
				native.DropEndedSlots(m.box)
			}
			before := m.used()
			result, again := m.run(args...)
			after := m.used()
			rc := result.Receipt
			if again {
				renewed++
			}
			off := after - before - *rc.User - *rc.System
			lost[again] = append(lost[again], off)
			if off < -2*time.Microsecond || off > cpuResolution { // each figure is cut off to microseconds
				t.Errorf("%q, renewed %v: the receipt says %v and %v, the box %v (seed %d)", args, again, *rc.User, *rc.System, after-before, seed)
			}
			if rc.PIDsPeak != nil && (*rc.PIDsPeak < least || *rc.PIDsPeak > most) {
				t.Errorf("%q, renewed %v: %d processes, want %d to %d (seed %d)", args, again, *rc.PIDsPeak, least, most, seed)
			}
			if *rc.OOMKills != 0 || rc.PIDsLimitReached != nil && *rc.PIDsLimitReached != 0 {
				t.Errorf("%q, renewed %v: %d killed for memory, %d forks refused (seed %d)", args, again, *rc.OOMKills, *rc.PIDsLimitReached, seed)
			}
			if rc.MemoryPeak != nil {
				peak[i] = *rc.MemoryPeak
				peaks[again] = append(peaks[again], peak[i])
			}
		}
		if d := peak[0] - peak[1]; max(d, -d) > memoryResolution {
			t.Errorf("%q, new slot first %v: peaks of %d and %d bytes (seed %d)", args, freshFirst, peak[0], peak[1], seed)
		}
	}
	for _, again := range []bool{false, true} {
		slices.Sort(lost[again])
		slices.Sort(peaks[again])
		if n := len(lost[again]); n > 0 {
			t.Logf("renewed %v: %d commands; not in the receipt: median %v, 99 %% %v, most %v", again, n, lost[again][n/2], lost[again][n*99/100], lost[again][n-1])
		}
	}
	if want := rounds / 4; renews(t) && renewed < want {
		t.Errorf("%d of %d commands were in renewed slots, want %d", renewed, 2*rounds, want)
	} else if !renews(t) && renewed > 0 {
		t.Errorf("%d slots were renewed on a host that cannot show that they are as good as new", renewed)
	}
}

// TestSlotsAreNotRenewed: after commands that leave something behind in the counters that cannot be reset.
func TestSlotsAreNotRenewed(t *testing.T) {
	m := newMeter(t, engine.Limits{Memory: 64 << 20, PIDs: 10})
	for name, c := range map[string]struct {
		command []string
		verdict engine.Verdict
	}{
		"killed for memory":   {[]string{"dd", "if=/dev/zero", "of=/dev/null", "bs=100M", "count=1"}, engine.OOM},
		"several processes":   {[]string{"sh", "-c", "true & wait"}, engine.Exited},
		"processes are left":  {[]string{"sh", "-c", "sleep 1000 & exit 0"}, engine.Exited},
		"processor time":      {[]string{"sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"}, engine.Exited},
		"a file on the tmpfs": {[]string{"dd", "status=none", "if=/dev/zero", "of=/tmp/large", "bs=4M", "count=1"}, engine.Exited},
	} {
		p, r := m.start(c.command...)
		if r.Verdict != c.verdict {
			t.Errorf("%s: %v (%s)", name, r.Verdict, r.Limit)
		}
		slot := native.SlotName(p)
		for range 5 {
			p, r := m.start("true")
			if native.SlotName(p) == slot {
				t.Errorf("%s: the slot was renewed", name)
			}
			if rc := r.Receipt; *rc.OOMKills != 0 || rc.PIDsPeak != nil && *rc.PIDsPeak != 1 || rc.MemoryPeak != nil && *rc.MemoryPeak > memoryResolution {
				t.Errorf("%s: a later receipt says %d, %d, %d", name, *rc.OOMKills, *rc.PIDsPeak, *rc.MemoryPeak)
			}
		}
	}
}

// TestNoRenewalBesideAProcess: a process of the box may have got descriptors of an ended command, which charge that
// command's slot. So nothing is renewed as long as there is any process.
func TestNoRenewalBesideAProcess(t *testing.T) {
	m := newMeter(t, engine.Limits{})
	p, err := m.box.Start(t.Context(), engine.Command{Args: []string{"cat"}, Stdin: holdOpen(t)})
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if _, renewed := m.run("true"); renewed {
			t.Fatal("a slot was renewed while another command ran")
		}
	}
	if renews(t) && native.RenewableSlots(m.box) == 0 {
		t.Error("no slot waits for a quiet moment")
	}
	if err := p.Signal(9); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(); err != nil {
		t.Fatal(err)
	}
	_, _ = m.run("true") // its end is a quiet moment
	if _, renewed := m.run("true"); renewed != renews(t) {
		t.Errorf("after a quiet moment: renewed %v", renewed)
	}
}

// holdOpen returns a pipe to read from whose other end stays open until the test ends.
func holdOpen(t *testing.T) *os.File {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close(); w.Close() })
	return r
}

// TestSplitInRenewedSlots: what earlier commands of a slot used in the kernel hardly shifts the split of the next.
func TestSplitInRenewedSlots(t *testing.T) {
	m := newMeter(t, engine.Limits{})
	if !renews(t) {
		return // the other tests show that nothing is renewed
	}
	rounds, compared := 2, 0
	if testutil.Full() {
		rounds = 40
	}
	long := []string{"sh", "-c", "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done"}
	for range rounds {
		fresh := m.runNew(long...)
		for range 4 {
			m.run("dd", "status=none", "if=/dev/zero", "of=/dev/null", "bs=1", "count=1500")
		}
		after, renewed := m.run(long...)
		if !renewed {
			continue // the short commands have used the slot up
		}
		compared++
		share := func(r engine.Result) time.Duration {
			return *r.Receipt.System * 100 / (*r.Receipt.User + *r.Receipt.System)
		}
		got, want := *after.Receipt.System, share(fresh)*(*after.Receipt.User+*after.Receipt.System)/100
		t.Logf("system time %v of %v, in a new slot %v of %v", got, got+*after.Receipt.User, *fresh.Receipt.System, *fresh.Receipt.System+*fresh.Receipt.User)
		if d := got - want; max(d, -d) > splitResolution {
			t.Errorf("system time %v, in a new slot about %v", got, want)
		}
	}
	if compared == 0 {
		t.Error("no long command was in a renewed slot")
	}
}

// TestReceiptsOfManyClients: of commands that run at once, nothing is counted twice or lost.
func TestReceiptsOfManyClients(t *testing.T) {
	rounds := 20
	if testutil.Full() {
		rounds = 500
	}
	m := newMeter(t, engine.Limits{Memory: 256 << 20, PIDs: 60})
	before := m.used()
	var mu sync.Mutex
	var sum time.Duration
	renewed := 0
	var wg sync.WaitGroup
	for client := range 4 {
		r := rand.New(rand.NewPCG(uint64(client), rand.Uint64()))
		wg.Go(func() {
			for range rounds {
				args, least, most := randomCommand(r)
				p, err := m.box.Start(t.Context(), engine.Command{Args: args})
				if err != nil {
					t.Errorf("%q: %v", args, err)
					return
				}
				result, err := p.Wait()
				if err != nil {
					t.Errorf("%q: %v", args, err)
					return
				}
				rc := result.Receipt
				if rc.PIDsPeak != nil && (*rc.PIDsPeak < least || *rc.PIDsPeak > most) {
					t.Errorf("%q: %d processes, want %d to %d", args, *rc.PIDsPeak, least, most)
				}
				mu.Lock()
				sum += *rc.User + *rc.System
				if native.InRenewedSlot(p) {
					renewed++
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	used, n := m.used()-before, time.Duration(4*rounds)
	t.Logf("%d of %d commands in renewed slots; receipts %v, the box %v: %v for each", renewed, n, sum, used, (used-sum)/n)
	if off := (used - sum) / n; off < -2*time.Microsecond || off > cpuResolution/10 {
		t.Errorf("the receipts of %d commands say %v, the box %v", n, sum, used)
	}
}
