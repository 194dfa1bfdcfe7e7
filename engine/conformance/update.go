package conformance

import (
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
)

// shownLimits: a program that sizes itself by what the system says it has does not take more than the box may
// use, after a change either.
func (e *suite) shownLimits(t testing.TB) {
	b := e.create(t, engine.Spec{Limits: engine.Limits{Memory: 256 * boxtest.MiB, CPUs: 1}})
	const shown = "awk '/^MemTotal/ {print $2 / 1024}' /proc/meminfo; grep -c ^processor /proc/cpuinfo; cat /sys/devices/system/cpu/online"
	boxtest.WantOutput(t, b, shown, "256\n1\n0\n")
	boxtest.Update(t, b, engine.Limits{Memory: 384 * boxtest.MiB, CPUs: 1})
	boxtest.WantOutput(t, b, shown, "384\n1\n0\n")
}

// updateMemory raises and lowers the limit of a running box.
func (e *suite) updateMemory(t testing.TB) {
	b := e.create(t, engine.Spec{Limits: engine.Limits{Memory: 48 * boxtest.MiB}})
	take := func(mb string) boxtest.Outcome {
		c := boxtest.Python(boxtest.Hog, mb)
		c.Stdin = strings.NewReader("")
		return boxtest.Run(t, b, c)
	}
	boxtest.Want(t, take("80"), engine.OOM, 137)
	boxtest.Update(t, b, engine.Limits{Memory: 128 * boxtest.MiB})
	boxtest.Want(t, take("80"), engine.Exited, 0)
	boxtest.Update(t, b, engine.Limits{Memory: 32 * boxtest.MiB})
	o := take("80")
	boxtest.Want(t, o, engine.OOM, 137)
	if o.Limit != "32 MiB" {
		t.Errorf("limit %q", o.Limit)
	}
	boxtest.Update(t, b, engine.Limits{Memory: engine.Unlimited})
	boxtest.Want(t, take("600"), engine.Exited, 0)

	// A limit below the current use is refused, and nothing is killed.
	out := boxtest.NewScreen()
	release, stdin := boxtest.NewGate()
	c := boxtest.Python(boxtest.Hog, "40")
	c.Stdin, c.Stdout = stdin, out
	p := boxtest.Begin(t, b, c)
	out.Await(t, "taken")
	err := b.Update(t.Context(), engine.Change{Limits: &engine.Limits{Memory: 16 * boxtest.MiB}})
	if err == nil || !strings.Contains(err.Error(), "memory") || strings.Contains(err.Error(), "\n") {
		t.Errorf("lowering below what is in use: %v", err)
	}
	release()
	if r := boxtest.Wait(t, p); r.Verdict != engine.Exited {
		t.Errorf("%+v", r)
	}
	boxtest.Want(t, take("80"), engine.Exited, 0) // the old limit holds
}

// updatePIDs also reaches a command that runs already.
func (e *suite) updatePIDs(t testing.TB) {
	b := e.create(t, engine.Spec{Limits: engine.Limits{PIDs: 4}})
	const many = "import os, time\nn = 1\ntry:\n while n < 20:\n  if os.fork() == 0: time.sleep(3600)\n  n += 1\nexcept BlockingIOError: pass\nprint(n)"
	for _, l := range []struct {
		limit int64
		want  string
	}{{4, "4\n"}, {9, "9\n"}, {3, "3\n"}, {engine.Unlimited, "20\n"}} {
		boxtest.Update(t, b, engine.Limits{PIDs: l.limit})
		if o := boxtest.Run(t, b, boxtest.Python(many)); o.Stdout != l.want {
			t.Errorf("limit %d: %q processes, stderr %q", l.limit, o.Stdout, boxtest.Tail(o.Stderr))
		}
	}
	out := boxtest.NewScreen()
	release, stdin := boxtest.NewGate()
	c := boxtest.Python("import sys\nprint('ready', flush=True)\nsys.stdin.read()\n" + many)
	c.Stdin, c.Stdout = stdin, out
	p := boxtest.Begin(t, b, c)
	out.Await(t, "ready\n")
	boxtest.Update(t, b, engine.Limits{PIDs: 6})
	release()
	if r := boxtest.Wait(t, p); out.String() != "6\n" {
		t.Errorf("%q, %+v", out, r)
	}
}

// updateCPUs slows a command down that runs already.
func (e *suite) updateCPUs(t testing.TB) {
	b := e.create(t, engine.Spec{Limits: engine.Limits{CPUs: engine.Unlimited}})
	c := boxtest.Shell("while :; do :; done")
	c.Timeout, c.Grace = 2*time.Second, time.Millisecond
	p := boxtest.Begin(t, b, c)
	boxtest.Update(t, b, engine.Limits{CPUs: 0.1})
	r := boxtest.Wait(t, p)
	used := boxtest.Figure(t, "user time", r.Receipt.User) + boxtest.Figure(t, "system time", r.Receipt.System)
	if most := r.Receipt.Wall/10 + 400*time.Millisecond; used > most {
		t.Errorf("used %v in %v, want at most %v", used, r.Receipt.Wall, most)
	}
}

// updateFiles: limits of processes count for commands that start afterwards.
func (e *suite) updateFiles(t testing.TB) {
	b := e.create(t, engine.Spec{})
	boxtest.Update(t, b, engine.Limits{OpenFiles: 33, FileSize: boxtest.MiB})
	boxtest.WantOutput(t, b, "ulimit -n; ulimit -f", "33\n2048\n")
	boxtest.Update(t, b, engine.Limits{FileSize: engine.Unlimited})
	boxtest.WantOutput(t, b, "ulimit -n; ulimit -f", "33\nunlimited\n")
}

// refusedUpdateLeavesMounts: one new mount that cannot be leaves the old ones alone,
// and the next change finds them.
func (e *suite) refusedUpdateLeavesMounts(t testing.TB) {
	old, other := boxtest.HostDir(t, 0, 0), boxtest.HostDir(t, 0, 0)
	at := func(source string) engine.Mount { return engine.Mount{Source: source, Target: "/data"} }
	b := e.create(t, engine.Spec{Mounts: []engine.Mount{at(old)}})
	err := b.Update(t.Context(), engine.Change{Detach: []string{"/data"}, Attach: []engine.Mount{at(old + "/missing")}})
	boxtest.WantBadMount(t, "missing", "/data", err)
	boxtest.Want(t, boxtest.Run(t, b, boxtest.Shell("touch /data/file")), engine.Exited, 0)
	if err := b.Update(t.Context(), engine.Change{Detach: []string{"/data"}, Attach: []engine.Mount{at(other)}}); err != nil {
		t.Error(err)
	}
	boxtest.Want(t, boxtest.Run(t, b, boxtest.Shell("test ! -e /data/file")), engine.Exited, 0)
}
