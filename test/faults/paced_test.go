package faults

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// mostEnding is the stated bound: maxEnding of the launcher, and those that it frees late.
const mostEnding = 64

// TestPacedEndings ends many boxes at once, in each way there is, and counts meanwhile in the
// kernel how many seccomp programs belong to no box that lives on: those that are
// being freed, or will be as soon as the kernel comes to it.
//
// In full 2,000 boxes are removed at once, or as many as have room, and only in the virtual
// machine: too many programs freed at a time stop a kernel for good. There a box takes up to half
// a second, so the other ways have 100 boxes in full as well, and are left out with -short.
func TestPacedEndings(t *testing.T) {
	binaries(t)
	n, removed := 100, 100
	switch {
	case testing.Short():
		removed = 70 // more than the bound
	case testutil.Full() && os.Getenv("BOXD_TEST_VM") != "":
		removed = min(2000, int(available(t)/(4<<20)))
	}
	for i, c := range []struct {
		name string
		n    int
		end  func(t *testing.T, e engine.Engine, boxes []engine.Box)
	}{
		{"boxes are removed", removed, func(t *testing.T, _ engine.Engine, boxes []engine.Box) {
			var wg sync.WaitGroup
			for _, b := range boxes {
				wg.Go(func() {
					if err := b.Remove(context.Background()); err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}},
		{"the engine is closed", n, func(t *testing.T, e engine.Engine, _ []engine.Box) {
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		}},
		{"the launcher is killed", n, func(t *testing.T, e engine.Engine, boxes []engine.Box) {
			var left []engine.Process // in boxes of every wave
			for i := 0; i < len(boxes); i += 10 {
				p, err := boxes[i].Start(context.Background(), engine.Command{Args: []string{"sleep", "1000"}})
				if err != nil {
					t.Error(err)
					return
				}
				left = append(left, p)
			}
			for pid := range launcherPIDs() {
				if err := unix.Kill(pid, unix.SIGKILL); err != nil {
					t.Error(err)
				}
			}
			for _, b := range boxes {
				<-b.Done()
			}
			for _, p := range left {
				if r, _ := p.Wait(); r.Verdict != engine.BoxLost {
					t.Errorf("a command ended as %s, want %s", r.Verdict, engine.BoxLost)
				}
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if i > 0 {
				testutil.Long(t)
			}
			n := c.n
			state := newState(t)
			base := programs(t)
			e := startEngineUnchecked(t, state)
			t.Cleanup(func() { _ = e.Close() })
			boxes := makeBoxes(t, e, n, 4, func(engine.Box) {})
			var agents []int
			for _, p := range descendants(os.Getpid()) {
				if p.isInit() {
					agents = append(agents, p.pid)
				}
			}
			// Other programs of the host may come and go.
			if got := programs(t) - base; got < n*9/10 || got > n*11/10 || len(agents) != n {
				t.Fatalf("%d programs and %d agents of %d boxes", got, len(agents), n)
			}
			base = programs(t) - n
			done := make(chan struct{})
			go func() {
				defer close(done)
				c.end(t, e, boxes)
			}()
			go func() { // plays the host's init, which gets the children of a dead launcher
				for tick := time.Tick(time.Millisecond); ; <-tick {
					for _, pid := range agents {
						_, _ = unix.Wait4(pid, nil, unix.WNOHANG, nil)
					}
					select {
					case <-done:
						return
					default:
					}
				}
			}()
			most, looks := 0, 0
			for ended := false; !ended; looks++ {
				select {
				case <-done:
					ended = true // one look more
				default:
				}
				// In this order: a box that ends in between is one too few, not too many.
				alive := living(agents)
				most = max(most, programs(t)-base-alive)
			}
			t.Logf("%d boxes: at most %d programs of ended boxes at a time, in %d looks", n, most, looks)
			if most > mostEnding {
				t.Errorf("%d programs of ended boxes at a time, want at most %d", most, mostEnding)
			}
			_ = e.Close() // in the last case it has lost its launcher
			waitGone(t, patience)
			follow(t, state)
		})
	}
}

// available is MemAvailable of this host, in bytes.
func available(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\nMemAvailable:")
	kib, err := strconv.ParseInt(strings.Fields(rest)[0], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// programs counts the BPF programs of this host: each has an area of its own, which
// goes when it has been freed.
func programs(t *testing.T) int {
	t.Helper()
	text, err := os.ReadFile("/proc/vmallocinfo")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(text), " bpf_prog_alloc") + strings.Count(string(text), " bpf_prog_realloc")
}

// living counts the processes that are still alive: proc_pid_stat(5).
func living(pids []int) (n int) {
	const exiting = 0x4 // PF_EXITING of <linux/sched.h>
	for _, pid := range pids {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue
		}
		f := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		flags, _ := strconv.ParseUint(f[6], 10, 64)
		pending, _ := strconv.ParseUint(f[28], 10, 64)
		if f[0] != "Z" && f[0] != "X" && flags&exiting == 0 && pending&(1<<(unix.SIGKILL-1)) == 0 {
			n++
		}
	}
	return n
}
