package faults

import (
	"bytes"
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

// makeUsedBoxes makes n boxes, some at a time, runs one command in each and leaves
// them idle.
func makeUsedBoxes(t *testing.T, e engine.Engine, n, parallel int) []engine.Box {
	t.Helper()
	return makeBoxes(t, e, n, parallel, func(b engine.Box) { wantUsable(t, b) })
}

// makeBoxes makes n boxes, some at a time, and does something with each.
func makeBoxes(t *testing.T, e engine.Engine, n, parallel int, use func(engine.Box)) []engine.Box {
	t.Helper()
	boxes := make([]engine.Box, n)
	var wg sync.WaitGroup
	turns := make(chan struct{}, parallel)
	for i := range boxes {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			b, err := e.Create(context.Background(), engine.Spec{})
			if err != nil {
				t.Errorf("box %d: %v", i, err)
				return
			}
			boxes[i] = b
			use(b)
		})
	}
	wg.Wait()
	if t.Failed() {
		t.FailNow()
	}
	return boxes
}

// TestIdleBoxes has 150 boxes alive at once, in full 500, and says what an idle one costs.
func TestIdleBoxes(t *testing.T) {
	binaries(t)
	n := 150
	switch {
	case testing.Short():
		n = 15 // an emulated machine is some 30 times slower
	case testutil.Full():
		n = 500
	}
	state := newState(t)
	before := ownMemory(t, os.Getpid())
	e := startEngine(t, state)
	began := time.Now()
	boxes := makeUsedBoxes(t, e, n, 4)
	made := time.Since(began)
	var agents, launcher int64
	count := 0
	for _, p := range descendants(os.Getpid()) {
		switch {
		case p.isLauncher():
			launcher += ownMemory(t, p.pid)
		case p.isInit():
			agents += ownMemory(t, p.pid)
			count++
		}
	}
	client := ownMemory(t, os.Getpid()) - before
	if count != n {
		t.Errorf("%d agents, want %d", count, n)
	}
	kib := func(total int64) int64 { return total / int64(n) >> 10 }
	t.Logf("| boxes | made in | agent | launcher's share | client's share | private memory of an idle box |")
	t.Logf("| %d | %v | %d KiB | %d KiB | %d KiB | %d KiB |", n, made.Round(time.Millisecond),
		kib(agents), kib(launcher), kib(client), kib(agents+launcher+client))
	if most := int64(2 << 20); kib(agents+launcher)<<10 > most && n >= 150 {
		t.Errorf("an idle box has more than %d bytes of private memory", most)
	}
	for _, b := range boxes { // still alive, all of them
		select {
		case <-b.Done():
			t.Errorf("box %s is gone", b.ID())
		default:
		}
	}
	wantUsable(t, boxes[0])
	wantUsable(t, boxes[n-1])
	// The engine removes them all when it is closed.
}

// ownMemory is the private memory of a process in bytes: smaps_rollup of proc(5).
func ownMemory(t testing.TB, pid int) int64 {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid))
	if err != nil {
		t.Fatal(err)
	}
	var total int64
	for line := range bytes.Lines(data) {
		f := strings.Fields(string(line))
		if len(f) > 1 && (f[0] == "Private_Clean:" || f[0] == "Private_Dirty:") {
			n, _ := strconv.ParseInt(f[1], 10, 64)
			total += n << 10
		}
	}
	return total
}

// TestParallelCreation makes 100 boxes all at once.
func TestParallelCreation(t *testing.T) {
	binaries(t)
	n := 100
	if testing.Short() {
		n = 15
	}
	state := newState(t)
	e := startEngine(t, state)
	began := time.Now()
	boxes := makeUsedBoxes(t, e, n, n)
	t.Logf("%d boxes in parallel: %v", n, time.Since(began).Round(time.Millisecond))
	seen := map[string]bool{}
	var wg sync.WaitGroup
	for _, b := range boxes {
		seen[b.ID()] = true
		wg.Go(func() {
			if err := b.Remove(context.Background()); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if len(seen) != n {
		t.Errorf("%d different ids of %d boxes", len(seen), n)
	}
}

// TestManyLaunchers has ten launchers on one state directory make and remove
// boxes, kills two of them, and starts more, which sweep meanwhile. The others do
// not notice.
func TestManyLaunchers(t *testing.T) {
	binaries(t)
	testutil.Long(t)
	state := newState(t)
	const launchers, doomed = 10, 2
	var wg sync.WaitGroup
	stop := make(chan struct{})
	var pids []int
	for i := range launchers {
		known := launcherPIDs()
		e := startEngineUnchecked(t, state)
		for pid := range launcherPIDs() {
			if !known[pid] {
				pids = append(pids, pid)
			}
		}
		wg.Go(func() {
			err := createUntil(e, stop)
			if cerr := e.Close(); err == nil {
				err = cerr
			}
			if (err != nil) != (i < doomed) {
				t.Errorf("launcher %d: %v", i, err)
			}
		})
	}
	for _, pid := range pids[:doomed] {
		time.Sleep(50 * time.Millisecond) // boxes are being made all the time
		if err := unix.Kill(pid, unix.SIGKILL); err != nil {
			t.Error(err)
		}
		for range 3 {
			follow(t, state)
		}
	}
	close(stop)
	wg.Wait()
	follow(t, state)
	wantNothingLeft(t, state, nil)
}

func launcherPIDs() map[int]bool {
	pids := map[int]bool{}
	for _, p := range descendants(os.Getpid()) {
		if p.isLauncher() && p.ppid == os.Getpid() {
			pids[p.pid] = true
		}
	}
	return pids
}

// createUntil makes boxes, runs a command in each and removes it.
func createUntil(e engine.Engine, stop <-chan struct{}) error {
	ctx := context.Background()
	for {
		select {
		case <-stop:
			return nil
		default:
		}
		b, err := e.Create(ctx, engine.Spec{})
		if err != nil {
			return err
		}
		r, err := engine.Run(ctx, b, engine.Command{Args: []string{"sh", "-c", "exit 7"}})
		if err == nil && r.ExitCode != ownStatus {
			err = fmt.Errorf("status %d, verdict %s", r.ExitCode, r.Verdict)
		}
		if rerr := b.Remove(ctx); err == nil {
			err = rerr
		}
		if err != nil {
			return err
		}
	}
}
