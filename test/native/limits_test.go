package native

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
)

const mib = 1 << 20

// hog takes and touches argv[1] MiB at once, says "taken", and waits for the end
// of its stdin.
const hog = `
import sys
x = bytearray(int(sys.argv[1]) << 20)
for i in range(0, len(x), 4096): x[i] = 1
print("taken", flush=True)
sys.stdin.read()
`

// TestSocketMemory: what TCP connections hold is charged to the box on cgroup2, and is
// bounded by a quarter of its memory limit on v1, in each command.
func TestSocketMemory(t *testing.T) {
	b := newBox(t, engine.Spec{Limits: engine.Limits{Memory: 64 * mib}})
	for range 2 {
		o := run(t, b, python(`
import socket
listener, kept, sent = socket.create_server(("127.0.0.1", 0)), [], 0
chunk = bytes(1 << 20)
for i in range(120):
    client = socket.create_connection(listener.getsockname())
    kept.append((client, listener.accept()))
    client.setblocking(False)
    try:
        while True: sent += client.send(chunk)
    except BlockingIOError: pass
print(sent)
`))
		if o.Verdict == engine.OOM {
			continue
		}
		want(t, o, engine.Exited, 0)
		if sent, err := strconv.Atoi(strings.TrimSpace(o.stdout)); err != nil || sent > 32*mib {
			t.Errorf("sockets of a box of 64 MiB took %q bytes", o.stdout)
		}
	}
}

// TestMemoryLimit has the memory limit reached in every way that there is.
func TestMemoryLimit(t *testing.T) {
	e := start(t)
	for _, c := range []struct {
		name string
		cmd  engine.Command
	}{
		{"one process", python("x = bytearray(10**9)")},
		{"a child of a shell", shell("python3 -c 'x = bytearray(10**9)'; exit $?")},
		{"exec in a background job", shell("(exec python3 -c 'x = bytearray(10**9)') & wait $!")},
		{"many small ones", python("import os, time\nfor i in range(16):\n if os.fork() == 0: x = bytearray(8 << 20); time.sleep(3600)\npid, status = os.wait()\nos._exit(status & 127)")},
		{"files in /tmp", shell("exec cat /dev/zero > /tmp/full")},
		{"files in /dev/shm", shell("exec cat /dev/zero > /dev/shm/full")},
		{"anonymous files", python("import os\nf = os.memfd_create('x')\nwhile True: os.write(f, bytes(1 << 20))")},
	} {
		t.Run(c.name, func(t *testing.T) {
			const limit = 48 * mib
			b := create(t, e, engine.Spec{TmpSize: 512 * mib, Limits: engine.Limits{Memory: limit}})
			o := run(t, b, c.cmd)
			status := 137
			if c.name == "many small ones" && !wholeCommandDies(t, b) {
				status = 9 // its own: the signal of its child
			}
			want(t, o, engine.OOM, status)
			if o.Limit != "48 MiB" {
				t.Errorf("limit %q, want 48 MiB", o.Limit)
			}
			if kills := figure(t, "OOM kills", o.Receipt.OOMKills); kills < 1 {
				t.Errorf("%d OOM kills, want some", kills)
			}
			if peak := figure(t, "memory peak", o.Receipt.MemoryPeak); peak > limit || peak < limit*3/4 {
				t.Errorf("memory peak %d, want almost the limit of %d", peak, limit)
			}
			// The box, and PID 1 of it, are as good as before, but for files that fill
			// its memory: then a command may not even be born.
			o, err := tryRun(t, b, shell("echo alive"))
			if err != nil && !strings.Contains(err.Error(), "memory limit of 48 MiB") ||
				err == nil && o.stdout != "alive\n" && o.Verdict != engine.OOM {
				t.Errorf("the next command: %+v, %v", o, err)
			}
			update(t, b, engine.Limits{Memory: 2 * limit})
			wantOutput(t, b, "echo alive", "alive\n")
		})
	}
}

// TestMemoryLimitOfChild: on v1, a command that copes with the death of a child has exited, and the receipt
// shows the kill. On v2 the kernel ends the whole command.
func TestMemoryLimitOfChild(t *testing.T) {
	b := newBox(t, engine.Spec{Limits: engine.Limits{Memory: 48 * mib}})
	o := run(t, b, shell("python3 -c 'x = bytearray(10**9)'; echo $?"))
	if wholeCommandDies(t, b) {
		want(t, o, engine.OOM, 137)
		return
	}
	want(t, o, engine.Exited, 0)
	if o.stdout != "137\n" || figure(t, "OOM kills", o.Receipt.OOMKills) != 1 {
		t.Errorf("printed %q with %d OOM kills, want 137 with 1", o.stdout, *o.Receipt.OOMKills)
	}
}

// TestSwapIsOff reads the kernel's setting, because a machine without swap would not show the difference.
func TestSwapIsOff(t *testing.T) {
	b := newBox(t, engine.Spec{Limits: engine.Limits{Memory: 48 * mib}})
	for _, f := range []struct {
		path string
		want string
	}{
		{"/sys/fs/cgroup/boxd/*." + b.ID() + "/work/memory.swap.max", "0"},
		{"/sys/fs/cgroup/memory/boxd/*." + b.ID() + "/work/memory.memsw.limit_in_bytes", strconv.Itoa(48 * mib)},
	} {
		found, err := filepath.Glob(f.path)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range found {
			got, err := os.ReadFile(path)
			if s := strings.TrimSpace(string(got)); s != f.want || err != nil {
				t.Errorf("%s is %q, %v, want %s", path, s, err, f.want)
			}
			return
		}
	}
	swaps, err := os.ReadFile("/proc/swaps")
	if err != nil || strings.Count(string(swaps), "\n") > 1 {
		t.Errorf("no swap limit is set, and the host has swap: %q, %v", swaps, err)
	}
}

// TestPIDsLimit lets a fork bomb go off.
func TestPIDsLimit(t *testing.T) {
	e := start(t)
	other := create(t, e, engine.Spec{})
	for _, c := range []struct {
		name string
		cmd  engine.Command
	}{
		{"shell", shell("bomb() { bomb | bomb & }; bomb; exec sleep 3600")},
		{"threads", python("import threading, time\ntry:\n while True: threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\nexcept RuntimeError: import os; os._exit(1)")},
		{"forks", python("import os, time\nwhile True:\n try: pid = os.fork()\n except BlockingIOError: os._exit(1)\n if pid == 0: time.sleep(3600)")},
		{"forks that fork on", python("import os, time\nwhile True:\n try: os.fork()\n except BlockingIOError: pass")},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := create(t, e, engine.Spec{Limits: engine.Limits{PIDs: 32}})
			c.cmd.Timeout, c.cmd.Grace = 3*time.Second, time.Millisecond
			p := begin(t, b, c.cmd)
			// Meanwhile the host, and another box, are not disturbed.
			wantOutput(t, other, "echo alive | cat", "alive\n")
			r := wait(t, p)
			if peak := figure(t, "pids peak", r.Receipt.PIDsPeak); peak > 32 || peak < 16 {
				t.Errorf("pids peak %d, want almost the limit of 32", peak)
			}
			// One that does not end is ended by the timeout.
			if r.Verdict != engine.PIDsLimit && r.Verdict != engine.TimedOut || r.Verdict == engine.PIDsLimit && r.Limit != "32" {
				t.Errorf("%s (limit %q), want pids-limit (limit 32)", r.Verdict, r.Limit)
			}
			if refused := figure(t, "forks refused", r.Receipt.PIDsLimitReached); refused < 1 {
				t.Errorf("%d forks refused, want some", refused)
			}
			wantOutput(t, b, "echo alive | cat", "alive\n")
		})
	}
}

// TestPIDsLimitExact: a limit of n is n processes of commands, PID 1 apart.
func TestPIDsLimitExact(t *testing.T) {
	e := start(t)
	for _, n := range []int64{1, 2, 5} {
		b := create(t, e, engine.Spec{Limits: engine.Limits{PIDs: n}})
		o := run(t, b, python(`
import os, time
n = 1
try:
    while True:
        if os.fork() == 0: time.sleep(3600)
        n += 1
except BlockingIOError: print(n)
`))
		if o.stdout != fmt.Sprintln(n) {
			t.Errorf("limit %d: %s processes, want %d; stderr %q", n, strings.TrimSpace(o.stdout), n, tail(o.stderr))
		}
		// It exited 0 but left processes that had to be killed.
		if peak := figure(t, "pids peak", o.Receipt.PIDsPeak); peak != n {
			t.Errorf("limit %d: pids peak %d", n, peak)
		}
	}
}

// TestCPULimit has two busy loops share half a processor. Wall time is only
// divided by, never judged.
func TestCPULimit(t *testing.T) {
	e := start(t)
	for _, cpus := range []float64{0.5, 0.1} {
		b := create(t, e, engine.Spec{Limits: engine.Limits{CPUs: cpus}})
		c := shell("while :; do :; done & while :; do :; done")
		c.Timeout, c.Grace = 2*time.Second, time.Millisecond
		o := run(t, b, c)
		want(t, o, engine.TimedOut, 124)
		used := figure(t, "user time", o.Receipt.User) + figure(t, "system time", o.Receipt.System)
		// Within a period of 100 ms at either end, and a slice of 5 ms for each
		// processor, the kernel may give more.
		most := time.Duration(cpus*float64(o.Receipt.Wall)) + 150*time.Millisecond
		if used > most {
			t.Errorf("%g CPUs: used %v in %v, want at most %v", cpus, used, o.Receipt.Wall, most)
		}
		if throttled := figure(t, "throttled time", o.Receipt.Throttled); throttled <= 0 && used > most*3/4 { // a loaded host may not give it so much
			t.Errorf("%g CPUs: throttled for %v, want some time", cpus, throttled)
		}
	}
}

// TestUnlimited: a limit that is switched off does not apply.
func TestUnlimited(t *testing.T) {
	b := newBox(t, engine.Spec{Limits: engine.Limits{Memory: engine.Unlimited, PIDs: engine.Unlimited, CPUs: engine.Unlimited, FileSize: engine.Unlimited}})
	c := python(hog, "600") // more than the default
	c.Stdin = strings.NewReader("")
	o := run(t, b, c)
	want(t, o, engine.Exited, 0)
	o = run(t, b, shell("i=0; while [ $i -lt 200 ]; do sleep 3600 & i=$((i+1)); done; echo done"))
	if o.stdout != "done\n" {
		t.Errorf("200 processes without a limit: %q, %q", o.stdout, tail(o.stderr))
	}
}
