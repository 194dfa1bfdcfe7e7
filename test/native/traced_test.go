package native

import (
	"testing"

	"github.com/boxd/boxd/engine"
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
