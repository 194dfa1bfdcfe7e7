package agent

import (
	"os"
	"sync/atomic"
	"testing"

	"github.com/boxd/boxd/agent/wire"
	"golang.org/x/sys/unix"
)

// TestReaperNumbers: a command gets its own status, even if it ends before its start is over, if other
// processes end meanwhile, or if it has the number of one of those.
func TestReaperNumbers(t *testing.T) {
	ends := make(chan unix.WaitStatus, 1)
	r := newReaper(func(_ uint32, status unix.WaitStatus) { ends <- status })
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	begin := func(script string, child *int32) int {
		t.Helper()
		const placeOutside = 1 // of spawn.h, which tests cannot include
		fd := int(null.Fd())
		m := &wire.SpawnMsg{Args: []string{"/bin/sh", "-c", script}, Dir: "/"}
		pid, failed := start(m, []int{fd, fd, fd, -1}, birth{place: placeOutside, child: child})
		if failed != nil {
			t.Fatal(failed)
		}
		return pid
	}
	reaped := func(pid int) int {
		for unix.Kill(pid, 0) == nil { // only the reaper knows when
			unix.Nanosleep(&unix.Timespec{Nsec: 1e6}, nil)
		}
		return pid
	}
	told := func(int, *wire.FailedMsg) {}
	r.sandbox = begin("exec sleep 1000", nil) // with whose end that of the reaper comes
	stopped := make(chan error)
	go func() { stopped <- r.run() }()

	r.birth(key{id: 1}, func(child *int32) (int, *wire.FailedMsg) {
		reaped(begin("exit 3", nil))
		return reaped(begin("exit 5", child)), nil
	}, told)
	if s := <-ends; s.ExitStatus() != 5 {
		t.Errorf("status %d, want 5", s.ExitStatus())
	}

	var number int
	r.birth(key{id: 2}, func(child *int32) (int, *wire.FailedMsg) {
		number = reaped(begin("exit 3", nil))
		r.mu.Lock()                             // until then the reaper works on the process that had the number
		atomic.StoreInt32(child, int32(number)) // as the kernel would if it gave the number away again
		r.mu.Unlock()
		return number, nil
	}, told)
	r.mu.Lock()
	if r.commands[number] != (key{id: 2}) || len(r.births) != 0 {
		t.Errorf("commands %v, births %v: the command runs", r.commands, r.births)
	}
	r.mu.Unlock()
	if err := unix.Kill(r.sandbox, unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if err := <-stopped; err == nil {
		t.Error("the reaper ends without an error")
	}
	select {
	case s := <-ends:
		t.Errorf("status %d of another process", s.ExitStatus())
	default:
	}
}
