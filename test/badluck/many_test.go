package badluck

import (
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/api/apitypes"
)

// TestReadyWithManySessions: a daemon that was killed finds all of them again, with what runs
// in them, and can be asked at once. BOXD_BADLUCK_SESSIONS makes it a measurement.
func TestReadyWithManySessions(t *testing.T) {
	n := 12
	if s := os.Getenv("BOXD_BADLUCK_SESSIONS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	d, c := start(t, newDir(t))
	id := func(i int) string { return fmt.Sprintf("s%04d", i) }
	none := descriptors(t, d.PID())
	pids := make([]int, n)
	boxes := make([]string, n)
	each(n, func(i int) {
		s, err := c.Ensure(timeLimit(t), apitypes.SessionRequest{ID: id(i)})
		if err != nil {
			t.Error(err)
			return
		}
		boxes[i] = s.Box
	})
	idle := descriptors(t, d.PID())
	each(n, func(i int) {
		if _, err := c.Exec(timeLimit(t), id(i), apitypes.ExecRequest{Argv: []string{"true"}}); err != nil {
			t.Error(err)
		}
	})
	used := descriptors(t, d.PID())
	each(n, func(i int) {
		p, err := c.Start(timeLimit(t), id(i), apitypes.ProcessRequest{ID: "service", Argv: []string{"sleep", "10000"}})
		if err != nil {
			t.Error(err)
			return
		}
		pids[i] = p.PID
	})
	if t.Failed() {
		return
	}
	before := descriptors(t, d.PID())
	// As internal/daemon counts on: files.go.
	if most := none + 17*n + 10; max(idle, used) > most {
		t.Errorf("%d descriptors with %d sessions, and %d once each has run a command: must be at most %d", idle, n, used, most)
	}
	if most := none + (17+13)*n + 10; before > most {
		t.Errorf("%d descriptors with %d sessions and processes, must be at most %d", before, n, most)
	}
	if err := d.Kill(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	ready := time.Since(began)
	run(t, c, id(n-1), "true")
	first := time.Since(began)
	each(n, func(i int) {
		s, err := c.Session(timeLimit(t), id(i))
		if err != nil || s.Box != boxes[i] || s.State != "running" {
			t.Errorf("%+v, %v; its box was %s", s, err, boxes[i])
		}
		p, err := c.Process(timeLimit(t), id(i), "service")
		if err != nil || p.PID != pids[i] || p.State != "running" {
			t.Errorf("%+v, %v; its pid was %d", p, err, pids[i])
		}
	})
	t.Logf("%d sessions: ready after %v, a command in the last one after %v, all taken over after %v; descriptors of the daemon: %d with idle sessions, %d after a command in each, %d with a process in each, %d taken over",
		n, ready, first, time.Since(began), idle, used, before, descriptors(t, d.PID()))
}

// descriptors counts those that a process has open.
func descriptors(t *testing.T, pid int) int {
	t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

// each calls fn for 0 to n-1, some at a time.
func each(n int, fn func(i int)) {
	next := make(chan int)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for i := range next {
				fn(i)
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	wg.Wait()
}
