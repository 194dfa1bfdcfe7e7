package conformance

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
)

// socketMemory: what TCP connections hold is charged to the box on cgroup2, and is
// bounded by a quarter of its memory limit on v1, in each command.
func (e *suite) socketMemory(t testing.TB) {
	b := e.create(t, engine.Spec{Limits: engine.Limits{Memory: 64 * boxtest.MiB}})
	for range 2 {
		o := boxtest.Run(t, b, boxtest.Python(`
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
		boxtest.Want(t, o, engine.Exited, 0)
		if sent, err := strconv.Atoi(strings.TrimSpace(o.Stdout)); err != nil || sent > 32*boxtest.MiB {
			t.Errorf("sockets of a box of 64 MiB took %q bytes", o.Stdout)
		}
	}
}

// memoryLimit has the memory limit reached in every way that there is.
func (e *suite) memoryLimit(t testing.TB) {
	for _, c := range []struct {
		name string
		cmd  engine.Command
	}{
		{"one process", boxtest.Python("x = bytearray(10**9)")},
		{"a child of a shell", boxtest.Shell("python3 -c 'x = bytearray(10**9)'; exit $?")},
		{"exec in a background job", boxtest.Shell("(exec python3 -c 'x = bytearray(10**9)') & wait $!")},
		{"many small ones", boxtest.Python("import os, time\nfor i in range(16):\n if os.fork() == 0: x = bytearray(8 << 20); time.sleep(3600)\npid, status = os.wait()\nos._exit(status & 127)")},
		{"files in /tmp", boxtest.Shell("exec cat /dev/zero > /tmp/full")},
		{"files in /dev/shm", boxtest.Shell("exec cat /dev/zero > /dev/shm/full")},
		{"anonymous files", boxtest.Python("import os\nf = os.memfd_create('x')\nwhile True: os.write(f, bytes(1 << 20))")},
	} {
		sub(t, c.name, func(t testing.TB) {
			const limit = 48 * boxtest.MiB
			b := e.create(t, engine.Spec{TmpSize: 512 * boxtest.MiB, Limits: engine.Limits{Memory: limit}})
			o := boxtest.Run(t, b, c.cmd)
			status := 137
			if c.name == "many small ones" && !boxtest.WholeCommandDies() {
				status = 9 // its own: the signal of its child
			}
			boxtest.Want(t, o, engine.OOM, status)
			if o.Limit != "48 MiB" {
				t.Errorf("limit %q, want 48 MiB", o.Limit)
			}
			if kills := boxtest.Figure(t, "OOM kills", o.Receipt.OOMKills); kills < 1 {
				t.Errorf("%d OOM kills, want some", kills)
			}
			if peak := boxtest.Figure(t, "memory peak", o.Receipt.MemoryPeak); peak > limit || peak < limit*3/4 {
				t.Errorf("memory peak %d, want almost the limit of %d", peak, limit)
			}
			// The box, and PID 1 of it, are as good as before, but for files that fill
			// its memory: then a command may not even be born.
			o, err := boxtest.TryRun(t, b, boxtest.Shell("echo alive"))
			if err != nil && !strings.Contains(err.Error(), "memory limit of 48 MiB") ||
				err == nil && o.Stdout != "alive\n" && o.Verdict != engine.OOM {
				t.Errorf("the next command: %+v, %v", o, err)
			}
			boxtest.Update(t, b, engine.Limits{Memory: 2 * limit})
			boxtest.WantOutput(t, b, "echo alive", "alive\n")
		})
	}
}

// memoryLimitOfChild: on v1, a command that copes with the death of a child has exited, and the receipt
// shows the kill. On v2 the kernel ends the whole command.
func (e *suite) memoryLimitOfChild(t testing.TB) {
	b := e.create(t, engine.Spec{Limits: engine.Limits{Memory: 48 * boxtest.MiB}})
	o := boxtest.Run(t, b, boxtest.Shell("python3 -c 'x = bytearray(10**9)'; echo $?"))
	if boxtest.WholeCommandDies() {
		boxtest.Want(t, o, engine.OOM, 137)
		return
	}
	boxtest.Want(t, o, engine.Exited, 0)
	if o.Stdout != "137\n" || boxtest.Figure(t, "OOM kills", o.Receipt.OOMKills) != 1 {
		t.Errorf("printed %q with %d OOM kills, want 137 with 1", o.Stdout, *o.Receipt.OOMKills)
	}
}

// pidsLimit lets a fork bomb go off.
func (e *suite) pidsLimit(t testing.TB) {
	other := e.create(t, engine.Spec{})
	for _, c := range []struct {
		name string
		cmd  engine.Command
	}{
		{"shell", boxtest.Shell("bomb() { bomb | bomb & }; bomb; exec sleep 3600")},
		{"threads", boxtest.Python("import threading, time\ntry:\n while True: threading.Thread(target=time.sleep, args=(3600,), daemon=True).start()\nexcept RuntimeError: import os; os._exit(1)")},
		{"forks", boxtest.Python("import os, time\nwhile True:\n try: pid = os.fork()\n except BlockingIOError: os._exit(1)\n if pid == 0: time.sleep(3600)")},
		{"forks that fork on", boxtest.Python("import os, time\nwhile True:\n try: os.fork()\n except BlockingIOError: pass")},
	} {
		sub(t, c.name, func(t testing.TB) {
			b := e.create(t, engine.Spec{Limits: engine.Limits{PIDs: 32}})
			c.cmd.Timeout, c.cmd.Grace = 3*time.Second, time.Millisecond
			p := boxtest.Begin(t, b, c.cmd)
			// Meanwhile the host, and another box, are not disturbed.
			boxtest.WantOutput(t, other, "echo alive | cat", "alive\n")
			r := boxtest.Wait(t, p)
			if peak := boxtest.Figure(t, "pids peak", r.Receipt.PIDsPeak); peak > 32 || peak < 16 {
				t.Errorf("pids peak %d, want almost the limit of 32", peak)
			}
			// One that does not end is ended by the timeout.
			if r.Verdict != engine.PIDsLimit && r.Verdict != engine.TimedOut || r.Verdict == engine.PIDsLimit && r.Limit != "32" {
				t.Errorf("%s (limit %q), want pids-limit (limit 32)", r.Verdict, r.Limit)
			}
			if refused := boxtest.Figure(t, "forks refused", r.Receipt.PIDsLimitReached); refused < 1 {
				t.Errorf("%d forks refused, want some", refused)
			}
			boxtest.WantOutput(t, b, "echo alive | cat", "alive\n")
		})
	}
}

// pidsLimitExact: a limit of n is n processes of commands, PID 1 apart.
func (e *suite) pidsLimitExact(t testing.TB) {
	for _, n := range []int64{1, 2, 5} {
		b := e.create(t, engine.Spec{Limits: engine.Limits{PIDs: n}})
		o := boxtest.Run(t, b, boxtest.Python(`
import os, time
n = 1
try:
    while True:
        if os.fork() == 0: time.sleep(3600)
        n += 1
except BlockingIOError: print(n)
`))
		if o.Stdout != fmt.Sprintln(n) {
			t.Errorf("limit %d: %s processes, want %d; stderr %q", n, strings.TrimSpace(o.Stdout), n, boxtest.Tail(o.Stderr))
		}
		// It exited 0 but left processes that had to be killed.
		if peak := boxtest.Figure(t, "pids peak", o.Receipt.PIDsPeak); peak != n {
			t.Errorf("limit %d: pids peak %d", n, peak)
		}
	}
}

// cpuLimit has two busy loops share half a processor. Wall time is only
// divided by, never judged.
func (e *suite) cpuLimit(t testing.TB) {
	for _, cpus := range []float64{0.5, 0.1} {
		b := e.create(t, engine.Spec{Limits: engine.Limits{CPUs: cpus}})
		c := boxtest.Shell("while :; do :; done & while :; do :; done")
		c.Timeout, c.Grace = 2*time.Second, time.Millisecond
		o := boxtest.Run(t, b, c)
		boxtest.Want(t, o, engine.TimedOut, 124)
		used := boxtest.Figure(t, "user time", o.Receipt.User) + boxtest.Figure(t, "system time", o.Receipt.System)
		// Within a period of 100 ms at either end, and a slice of 5 ms for each
		// processor, the kernel may give more.
		most := time.Duration(cpus*float64(o.Receipt.Wall)) + 150*time.Millisecond
		if used > most {
			t.Errorf("%g CPUs: used %v in %v, want at most %v", cpus, used, o.Receipt.Wall, most)
		}
		if throttled := boxtest.Figure(t, "throttled time", o.Receipt.Throttled); throttled <= 0 && used > most*3/4 { // a loaded host may not give it so much
			t.Errorf("%g CPUs: throttled for %v, want some time", cpus, throttled)
		}
	}
}

// unlimited: a limit that is switched off does not apply.
func (e *suite) unlimited(t testing.TB) {
	b := e.create(t, engine.Spec{Limits: engine.Limits{Memory: engine.Unlimited, PIDs: engine.Unlimited, CPUs: engine.Unlimited, FileSize: engine.Unlimited}})
	c := boxtest.Python(boxtest.Hog, "600") // more than the default
	c.Stdin = strings.NewReader("")
	o := boxtest.Run(t, b, c)
	boxtest.Want(t, o, engine.Exited, 0)
	o = boxtest.Run(t, b, boxtest.Shell("i=0; while [ $i -lt 200 ]; do sleep 3600 & i=$((i+1)); done; echo done"))
	if o.Stdout != "done\n" {
		t.Errorf("200 processes without a limit: %q, %q", o.Stdout, boxtest.Tail(o.Stderr))
	}
}
