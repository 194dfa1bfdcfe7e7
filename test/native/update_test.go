package native

import (
	"io"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
)

var errEnd = io.EOF

func update(t *testing.T, b engine.Box, l engine.Limits) {
	t.Helper()
	if err := b.Update(t.Context(), engine.Change{Limits: &l}); err != nil {
		t.Fatal(err)
	}
}

// TestUpdateMemory raises and lowers the limit of a running box.
func TestUpdateMemory(t *testing.T) {
	b := newBox(t, engine.Spec{Limits: engine.Limits{Memory: 48 * mib}})
	take := func(mb string) outcome {
		c := python(hog, mb)
		c.Stdin = strings.NewReader("")
		return run(t, b, c)
	}
	want(t, take("80"), engine.OOM, 137)
	update(t, b, engine.Limits{Memory: 128 * mib})
	want(t, take("80"), engine.Exited, 0)
	update(t, b, engine.Limits{Memory: 32 * mib})
	o := take("80")
	want(t, o, engine.OOM, 137)
	if o.Limit != "32 MiB" {
		t.Errorf("limit %q", o.Limit)
	}
	update(t, b, engine.Limits{Memory: engine.Unlimited})
	want(t, take("600"), engine.Exited, 0)

	// A limit below the current use is refused, and nothing is killed.
	out := newScreen()
	release, stdin := newGate()
	c := python(hog, "40")
	c.Stdin, c.Stdout = stdin, out
	p := begin(t, b, c)
	out.await(t, "taken")
	err := b.Update(t.Context(), engine.Change{Limits: &engine.Limits{Memory: 16 * mib}})
	if err == nil || !strings.Contains(err.Error(), "memory") || strings.Contains(err.Error(), "\n") {
		t.Errorf("lowering below what is in use: %v", err)
	}
	release()
	if r := wait(t, p); r.Verdict != engine.Exited {
		t.Errorf("%+v", r)
	}
	want(t, take("80"), engine.Exited, 0) // the old limit holds
}

// TestUpdatePIDs also reaches a command that runs already.
func TestUpdatePIDs(t *testing.T) {
	b := newBox(t, engine.Spec{Limits: engine.Limits{PIDs: 4}})
	const many = "import os, time\nn = 1\ntry:\n while n < 20:\n  if os.fork() == 0: time.sleep(3600)\n  n += 1\nexcept BlockingIOError: pass\nprint(n)"
	for _, l := range []struct {
		limit int64
		want  string
	}{{4, "4\n"}, {9, "9\n"}, {3, "3\n"}, {engine.Unlimited, "20\n"}} {
		update(t, b, engine.Limits{PIDs: l.limit})
		if o := run(t, b, python(many)); o.stdout != l.want {
			t.Errorf("limit %d: %q processes, stderr %q", l.limit, o.stdout, tail(o.stderr))
		}
	}
	out := newScreen()
	release, stdin := newGate()
	c := python("import sys\nprint('ready', flush=True)\nsys.stdin.read()\n" + many)
	c.Stdin, c.Stdout = stdin, out
	p := begin(t, b, c)
	out.await(t, "ready\n")
	update(t, b, engine.Limits{PIDs: 6})
	release()
	if r := wait(t, p); out.String() != "6\n" {
		t.Errorf("%q, %+v", out, r)
	}
}

// TestUpdateCPUs slows a command down that runs already.
func TestUpdateCPUs(t *testing.T) {
	b := newBox(t, engine.Spec{Limits: engine.Limits{CPUs: engine.Unlimited}})
	c := shell("while :; do :; done")
	c.Timeout, c.Grace = 2*time.Second, time.Millisecond
	p := begin(t, b, c)
	update(t, b, engine.Limits{CPUs: 0.1})
	r := wait(t, p)
	used := figure(t, "user time", r.Receipt.User) + figure(t, "system time", r.Receipt.System)
	if most := r.Receipt.Wall/10 + 400*time.Millisecond; used > most {
		t.Errorf("used %v in %v, want at most %v", used, r.Receipt.Wall, most)
	}
}

// TestUpdateFiles: limits of processes count for commands that start afterwards.
func TestUpdateFiles(t *testing.T) {
	b := newBox(t, engine.Spec{})
	update(t, b, engine.Limits{OpenFiles: 33, FileSize: mib})
	wantOutput(t, b, "ulimit -n; ulimit -f", "33\n2048\n")
	update(t, b, engine.Limits{FileSize: engine.Unlimited})
	wantOutput(t, b, "ulimit -n; ulimit -f", "33\nunlimited\n")
}

// TestRefusedUpdateLeavesMounts: one new mount that cannot be leaves the old ones alone,
// and the next change finds them.
func TestRefusedUpdateLeavesMounts(t *testing.T) {
	old, other := hostDir(t, 0, 0), hostDir(t, 0, 0)
	at := func(source string) engine.Mount { return engine.Mount{Source: source, Target: "/data"} }
	b := newBox(t, engine.Spec{Mounts: []engine.Mount{at(old)}})
	err := b.Update(t.Context(), engine.Change{Detach: []string{"/data"}, Attach: []engine.Mount{at(old + "/missing")}})
	wantBadMount(t, "missing", "/data", err)
	want(t, run(t, b, shell("touch /data/file")), engine.Exited, 0)
	if err := b.Update(t.Context(), engine.Change{Detach: []string{"/data"}, Attach: []engine.Mount{at(other)}}); err != nil {
		t.Error(err)
	}
	want(t, run(t, b, shell("test ! -e /data/file")), engine.Exited, 0)
}
