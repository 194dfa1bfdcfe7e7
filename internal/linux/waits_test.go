package linux

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// A stopped process is recognised, and so is a stopped thread among others.
func TestWaits(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("stopping: %v, %v", err, status)
	}
	list, err := Waits(cmd.Process.Pid)
	if err != nil || len(list) != 1 {
		t.Fatalf("%v, %v", list, err)
	}
	if w := list[0]; w.PID != cmd.Process.Pid || w.TID != w.PID || w.State != 'T' || w.Command != "sleep" || w.IsIdle() {
		t.Errorf("a stopped process is %+v", w)
	}
	own, err := Waits(os.Getpid())
	if err != nil || len(own) < 2 {
		t.Fatalf("%v, %v", own, err)
	}
	if w, ok := Hanging(append(own, list...)); !ok || w != list[0] {
		t.Errorf("of all, %v hangs", w)
	}
	if _, err := Waits(1 << 30); !os.IsNotExist(err) {
		t.Errorf("threads of no process: %v", err)
	}
}

func TestHanging(t *testing.T) {
	idle := Wait{PID: 1, TID: 1, Command: "x", State: 'S', Channel: "futex_wait_queue"}
	odd := Wait{PID: 1, TID: 2, Command: "x", State: 'S', Channel: "request_wait_answer"}
	stopped := Wait{PID: 1, TID: 3, Command: "x", State: 'T', Channel: "do_signal_stop"}
	dead := Wait{PID: 1, TID: 4, Command: "x", State: 'D', Channel: "mutex_lock"}
	for _, c := range []struct {
		threads []Wait
		want    Wait
	}{
		{[]Wait{idle}, idle},
		{[]Wait{idle, odd, idle}, odd},
		{[]Wait{odd, stopped, idle}, stopped},
		{[]Wait{stopped, dead, odd}, dead},
	} {
		if got, ok := Hanging(c.threads); !ok || got != c.want {
			t.Errorf("of %v: %v", c.threads, got)
		}
	}
	if _, ok := Hanging(nil); ok {
		t.Error("one of no threads hangs")
	}
	if s := dead.String(); s != "thread 4 of process 1 (x), state D, wchan mutex_lock" {
		t.Error(s)
	}
	if s := (Wait{PID: 1, TID: 1, Command: "x", State: 'T'}).String(); strings.Contains(s, "wchan") || !strings.HasPrefix(s, "process 1 (x)") {
		t.Error(s)
	}
}
