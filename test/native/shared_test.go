package native

import (
	"bufio"
	"io"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine"
)

// exhaust takes all it can get of what the kernel gives out per user, says so, and
// holds it until its input ends.
const exhaust = `
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
inotify = 0
while libc.inotify_init1(0) >= 0:
    inotify += 1
class attr(ctypes.Structure):
    _fields_ = [(n, ctypes.c_long) for n in "fmscabde"]
queues = 0
while libc.mq_open(b"/q%d" % queues, 0o102, 0o600, ctypes.byref(attr(0, 10, 8192, 0))) >= 0:
    queues += 1
timer, timers = ctypes.c_void_p(), 0
while timers < 200000 and libc.timer_create(1, None, ctypes.byref(timer)) >= 0:
    timers += 1
print("took", inotify, queues, timers, flush=True)
sys.stdin.read()
`

// What the kernel counts per user and a box uses up is missing neither on the host
// nor in another box: each box is a user of its own.
func TestPerUserResources(t *testing.T) {
	e := start(t)
	greedy := create(t, e, engine.Spec{})
	stdinRead, stdinWrite := io.Pipe()
	stdoutRead, stdoutWrite := io.Pipe()
	c := python(exhaust)
	c.Stdin, c.Stdout = stdinRead, stdoutWrite
	p := begin(t, greedy, c)
	line, err := bufio.NewReader(stdoutRead).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "took ") || strings.HasPrefix(line, "took 0") {
		t.Fatalf("%q, %v", line, err)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		t.Errorf("inotify on the host after a box %s: %v", strings.TrimSpace(line), err)
	} else {
		unix.Close(fd)
	}
	other := create(t, e, engine.Spec{})
	o := run(t, other, python("import ctypes; print(ctypes.CDLL(None).inotify_init1(0) >= 0)"))
	if o.Stdout != "True\n" {
		t.Errorf("inotify in another box: %+v", o)
	}
	stdinWrite.Close()
	want(t, outcome{Result: wait(t, p)}, engine.Exited, 0)
}

// A command that crashes leaves no core dump, whatever the host's core_pattern.
func TestNoCoreDumps(t *testing.T) {
	b := newBox(t, engine.Spec{})
	o := run(t, b, shell("ulimit -c; ulimit -Hc; cat /proc/self/coredump_filter"))
	// A limit of 1 byte: 0 would not stop a pattern that is a pipe (core(5)). The
	// shell counts in blocks. Where the host's own limit is 0 it stays.
	for _, line := range strings.Fields(o.Stdout) {
		if strings.Trim(line, "0") != "" {
			t.Errorf("core limits and filter: %q", o.Stdout)
		}
	}
	var host unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &host); err != nil {
		t.Fatal(err)
	}
	o = run(t, b, python("import resource; print(*resource.getrlimit(resource.RLIMIT_CORE))"))
	if want := "1 1\n"; host.Max > 0 && o.Stdout != want {
		t.Errorf("core limits: %q, want %q", o.Stdout, want)
	}
}
