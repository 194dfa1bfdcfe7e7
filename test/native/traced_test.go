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

// TestSignalledInit: no signal but SIGKILL ends PID 1 of a box or stops it, also not from root of the host.
func TestSignalledInit(t *testing.T) {
	b := newBox(t, engine.Spec{})
	for _, pid := range services.Init(t, b.ID()) {
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
