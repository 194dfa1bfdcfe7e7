package native

import (
	"syscall"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/test/services"
)

// TestTracedByInit: a command, or an orphan, that has PID 1 trace it (as programs do that try
// each system call) ends at its next signal, and the box goes on.
func TestTracedByInit(t *testing.T) {
	const traceMe = "import ctypes, os, signal, time\nassert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0\n"
	b := newBox(t, engine.Spec{})
	want(t, run(t, b, python(traceMe+"os.kill(os.getpid(), signal.SIGURG)\ntime.sleep(60)")), engine.Signaled, 137)
	orphan := `import os, time
r, w = os.pipe()
if os.fork() == 0:
    if os.fork(): os._exit(0)
    while os.getppid() != 1: time.sleep(0.001)
    os.close(r)
    ` + "import ctypes, signal\n    assert ctypes.CDLL(None).ptrace(0, 0, 0, 0) == 0\n    os.kill(os.getpid(), signal.SIGURG)\n    time.sleep(60)" + `
os.close(w)
print(len(os.read(r, 1)))`
	if o := run(t, b, python(orphan)); o.Stdout != "0\n" {
		t.Errorf("an orphan: %+v", o)
	}
	wantOutput(t, b, "echo on", "on\n")
}

// TestSignalledInit: signals from the host that end or stop other programs leave PID 1 of a box running, except
// SIGKILL and SIGSTOP, and those that report faults.
func TestSignalledInit(t *testing.T) {
	b := newBox(t, engine.Spec{})
	pids := services.Init(t, b.ID())
	if len(pids) == 0 {
		t.Fatal("PID 1 is not found")
	}
	for _, pid := range pids {
		for sig := syscall.Signal(1); sig <= 31; sig++ {
			switch sig {
			case syscall.SIGKILL, syscall.SIGSTOP:
			case syscall.SIGILL, syscall.SIGTRAP, syscall.SIGABRT, syscall.SIGBUS, syscall.SIGFPE, syscall.SIGSEGV, syscall.SIGSYS, syscall.SIGSTKFLT: // faults
			default:
				if err := syscall.Kill(pid, sig); err != nil {
					t.Fatal(sig, err)
				}
			}
		}
	}
	wantOutput(t, b, "echo on", "on\n")
}
