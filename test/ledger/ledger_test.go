package ledger

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/boxes"
)

// target is where a box finds the test binary.
const target = "/opt/ledger"

// TestLedger: of no kind does a box of 64 MiB with default limits hold more than it may. In
// full there are three runs of some seconds each; otherwise one short run, and two more where
// that one held too much.
func TestLedger(t *testing.T) {
	testutil.RequireRoot(t)
	runs := 1
	if testutil.Full() {
		runs = 3
	}
	e, self := boxes.Start(t), testutil.CopyOfSelf(t, "ledger")
	for _, k := range kinds {
		t.Run(k.name, func(t *testing.T) {
			run := runOf(k)
			var held []int64
			for range runs {
				held = append(held, measure(t, e, self, k, run))
			}
			for len(held) < 3 && run.limit.judge(held) != nil {
				held = append(held, measure(t, e, self, k, run))
			}
			if err := run.limit.judge(held); err != nil {
				t.Errorf("%v: %s", err, k.why)
			}
		})
	}
}

// run is how a kind is measured.
type run struct {
	memory  int64 // of the box
	limit   bound
	lasting time.Duration
}

func runOf(k kind) run {
	r := run{boxLimit, k.limit(), 400 * time.Millisecond}
	switch {
	case testutil.Full():
		r.lasting = 4 * time.Second
		if os.Getenv("BOXD_TEST_VM") != "" { // an emulated processor
			r.lasting *= 2
		}
	case k.slow:
		r = run{smallLimit, bound{smallLimit + smallMargin, "bytes"}, 1500 * time.Millisecond}
	}
	return r
}

// watcherPatience bounds the wait for a watcher to end the command. It looks several times a
// second.
const watcherPatience = 20 * time.Second

// measure has a new box allocate and keep as much as it can for some time. It returns the maximum of the
// kind's counter or, for a kind that is watched, its final value.
func measure(t *testing.T, e engine.Engine, self string, k kind, run run) int64 {
	t.Helper()
	b, remove := boxes.Create(t, e, engine.Spec{
		Limits: engine.Limits{Memory: run.memory},
		Mounts: []engine.Mount{{Source: self, Target: target, ReadOnly: true}},
	})
	defer remove()
	s := &scene{id: b.ID(), proc: firstProcess(t, b), reports: map[int]report{}}
	before, available := read(t, k.held, s), read(t, meminfo("MemAvailable"), s)

	hold, release, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer hold.Close()
	defer release.Close()
	told, tell := io.Pipe()
	var stderr strings.Builder
	p, err := b.Start(t.Context(), engine.Command{
		Args:   []string{target + "/ledger"},
		Env:    []string{roleKind + "=" + k.name, roleWorker + "=0", fmt.Sprintf("%s=%s", roleTime, run.lasting), "GOMAXPROCS=2"},
		Stdin:  hold,
		Stdout: tell,
		Stderr: &stderr,
		// A hang gets a name; it decides nothing else. The kernel walks lists of thousands of
		// objects to free each of them, which takes an emulated processor minutes.
		Timeout: 15 * time.Minute,
	})
	if err != nil {
		t.Fatal(err)
	}
	reports := make(chan report)
	go func() {
		defer close(reports)
		for lines := bufio.NewScanner(told); lines.Scan(); {
			r, err := parseReport(lines.Text())
			if err != nil {
				t.Error(err)
			}
			reports <- r
		}
	}()
	type ending struct {
		engine.Result
		err error
	}
	ended := make(chan ending, 1)
	go func() {
		r, err := p.Wait()
		tell.Close()
		ended <- ending{r, err}
	}()

	// What a box cannot keep, because it is killed for it, counts as well.
	var now, most, fall int64
	sample := func() {
		now = read(t, k.held, s) - before
		most = max(most, now)
		fall = max(fall, available-read(t, meminfo("MemAvailable"), s))
	}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for open, waiting := true, max(1, k.workers); open && waiting > 0; {
		select {
		case r, more := <-reports:
			switch open = more; {
			case r.ended:
				if !s.reports[r.worker].done {
					waiting--
				}
			case more:
				s.reports[r.worker] = r
				if r.done {
					waiting--
				}
			}
		case <-tick.C:
			sample()
		}
	}
	sample()
	peak := most
	if k.watched {
		for patience := time.After(watcherPatience); now > run.limit.most && patience != nil; {
			select {
			case <-tick.C:
				sample()
			case _, more := <-reports:
				if !more {
					reports = nil // the command has ended: it takes a moment until all is freed
				}
			case <-patience:
				patience = nil
			}
		}
		most = now
	}
	release.Close()
	if reports != nil {
		for range reports { // to the end, so that nothing is left unread
		}
	}
	end := <-ended
	if end.err != nil {
		t.Fatal(end.err)
	}
	if end.Verdict == engine.Exited && end.ExitCode != 0 || end.Verdict == engine.TimedOut {
		t.Errorf("%s, status %d: %s", end.Verdict, end.ExitCode, stderr.String())
	}
	objects, bytes := read(t, made, s), read(t, claimed, s)
	t.Logf("%s of %s, %s at most; it claims %d objects, %d MiB; %s %s; MemAvailable fell by %d MiB",
		run.limit.format(most), run.limit.format(run.limit.most), run.limit.format(peak), objects, bytes>>20, end.Verdict, s.reports[0].reason, fall>>20)
	return most
}

func read(t *testing.T, c counter, s *scene) int64 {
	t.Helper()
	n, err := c(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// firstProcess returns /proc/PID of the first process of a box: its agent.
func firstProcess(t *testing.T, b engine.Box) string {
	t.Helper()
	for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/unified"} {
		found, err := filepath.Glob(filepath.Join(root, "boxd", "*."+b.ID(), "init", "cgroup.procs"))
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range found {
			if pids, _ := os.ReadFile(f); len(pids) > 0 {
				return "/proc/" + strings.Fields(string(pids))[0]
			}
		}
	}
	t.Fatalf("box %q: no control group has its first process", b.ID())
	return ""
}
