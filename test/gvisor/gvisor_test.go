package gvisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/boxtest"
	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/test/services"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// start runs an engine that knows runsc, and fails if it leaves anything.
func start(t testing.TB, runsc string) *native.Engine {
	t.Helper()
	_, initPath := testutil.BuildBinaries(t)
	dir := services.StateDir(t)
	e, err := native.Start(boxtest.Patient(t), native.Options{InitPath: initPath, StateDir: dir, Runtimes: native.Runtimes{GVisor: runsc}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

func guest(s engine.Spec) engine.Spec {
	s.Engine, s.Isolation = spec.EngineOCI, spec.IsolationGVisor
	return s
}

func create(t testing.TB, e *native.Engine, s engine.Spec) engine.LiveBox {
	t.Helper()
	b, err := e.Create(boxtest.Patient(t), guest(s))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { boxtest.Remove(t, b) })
	return b.(engine.LiveBox)
}

// TestKernel: commands are on another kernel than the host's, which knows the box's users and nothing of
// what runs the sandbox.
func TestKernel(t *testing.T) {
	e := start(t, testutil.Runsc(t))
	b := create(t, e, engine.Spec{ID: "kernel", Limits: engine.Limits{PIDs: 40}})
	boxtest.WantOutput(t, b, "dmesg | grep -c gVisor", "1\n")
	boxtest.WantOutput(t, b, "ls /sys/root /sys/state /sys/bundle 2>&1 | grep -c 'No such file'", "3\n")
	// The helpers cannot be signalled, traced or read by a command, whoever it is.
	for _, uid := range []int{0, 1000} {
		c := boxtest.Shell(`for p in /proc/[0-9]*; do
			case $(tr '\0' ' ' < $p/cmdline) in /sys/boxd/boxd-agent*)
				kill -9 ${p#/proc/} 2>/dev/null && echo killed
				head -c 1 $p/mem 2>/dev/null && echo read
				readlink $p/fd/3 && echo linked;;
			esac
		done; echo tried`)
		c.User = &engine.User{UID: uid, GID: uid}
		o := boxtest.Run(t, b, c)
		boxtest.Want(t, o, engine.Exited, 0)
		if o.Stdout != "tried\n" {
			t.Errorf("user %d: %q, %q", uid, o.Stdout, o.Stderr)
		}
	}
	// The limit of processes is the kernel's of the box. It cannot be raised.
	o := boxtest.Run(t, b, boxtest.Python(`
import os, resource
n = 0
try:
    while True:
        if os.fork() == 0:
            os.pause() if hasattr(os, 'pause') else __import__('signal').pause()
        n += 1
except OSError as e:
    print(30 <= n <= 45, e.strerror)
try: resource.setrlimit(resource.RLIMIT_NPROC, (1000, 1000))
except ValueError as e: print(e)
`))
	if o.Stdout != "True Resource temporarily unavailable\nnot allowed to raise maximum limit\n" {
		t.Errorf("%+v", o)
	}
	boxtest.WantOutput(t, b, "ps -e | wc -l | xargs test 12 -gt && echo few", "few\n") // and all of them were killed
}

// TestOnHost: what runs for the box on the host runs as users of the box, in its cgroups and namespaces.
func TestOnHost(t *testing.T) {
	e := start(t, testutil.Runsc(t))
	b := create(t, e, engine.Spec{ID: "onhost"})
	p := boxtest.Begin(t, b, engine.Command{Args: []string{"sleep", "1000"}})
	pids := services.Commands(t, "onhost")
	if len(pids) < 3 {
		t.Errorf("%d processes for a sandbox and a command: where are they?", len(pids))
	}
	self, err := os.Readlink("/proc/self/ns/user")
	if err != nil {
		t.Fatal(err)
	}
	for _, pid := range append(pids, services.Init(t, "onhost")...) {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
		if err != nil {
			continue // it has just ended
		}
		_, ids, _ := strings.Cut(string(status), "\nUid:")
		var uid int
		if _, err := fmt.Sscan(ids, &uid); err != nil || uid < 1<<16 {
			t.Errorf("process %d is user %d of the host, %v", pid, uid, err)
		}
		if !strings.Contains(string(status), "\nNoNewPrivs:\t1\n") {
			t.Errorf("process %d may gain privileges", pid)
		}
		if ns, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/user", pid)); err == nil && ns == self {
			t.Errorf("process %d is in the host's user namespace", pid)
		}
	}
	if err := p.Signal(9); err != nil {
		t.Error(err)
	}
	boxtest.Wait(t, p)
}

// TestKilledOutside: whoever kills the helper of a command on the host, with the whole slot as a launcher
// does or alone, kills the command in the sandbox with everything that it started.
func TestKilledOutside(t *testing.T) {
	e := start(t, testutil.Runsc(t))
	b := create(t, e, engine.Spec{ID: "killed"})
	ctx, cancel := context.WithCancel(t.Context())
	p, err := b.Start(ctx, boxtest.Shell("setsid sleep 1111 & (trap '' TERM; sleep 1112) & sleep 1113"))
	if err != nil {
		t.Fatal(err)
	}
	boxtest.WaitUntil(t, "the command runs", func() bool {
		return strings.Count(boxtest.Run(t, b, boxtest.Shell("ps -eo args")).Stdout, "sleep 111") >= 3
	})
	cancel()
	r, err := p.Wait()
	if err != nil || r.Verdict != engine.Canceled || r.Signal != 9 {
		t.Errorf("%+v, %v", r, err)
	}
	boxtest.WaitUntil(t, "everything is dead", func() bool {
		return !strings.Contains(boxtest.Run(t, b, boxtest.Shell("ps -eo args | grep -v grep")).Stdout, "sleep 111")
	})
}

// TestSignals: a signal to a command is for its first process, one at a timeout for all of them.
func TestSignals(t *testing.T) {
	e := start(t, testutil.Runsc(t))
	b := create(t, e, engine.Spec{ID: "signals"})
	c := boxtest.Shell("trap 'echo got; exit 3' TERM; sleep 1000")
	c.Timeout, c.Grace = 300*time.Millisecond, boxtest.Patience
	if o := boxtest.Run(t, b, c); o.Verdict != engine.TimedOut || o.ExitCode != 3 || o.Stdout != "got\n" {
		t.Errorf("%+v", o)
	}
	out := boxtest.NewScreen()
	c = boxtest.Shell("trap 'echo usr1' USR1; echo ready; (trap 'echo child' USR1; sleep 1000) & while :; do wait; done")
	c.Stdout = out
	p := boxtest.Begin(t, b, c)
	out.Await(t, "ready")
	if err := p.Signal(syscall.SIGUSR1); err != nil {
		t.Error(err)
	}
	out.Await(t, "usr1")
	if err := p.Signal(syscall.SIGKILL); err != nil {
		t.Error(err)
	}
	if r := boxtest.Wait(t, p); r.Signal != syscall.SIGKILL || strings.Contains(out.String(), "child") {
		t.Errorf("%+v, %q", r, out)
	}
}

// TestBackground: processes that a command may leave go on, and end with the box.
func TestBackground(t *testing.T) {
	e := start(t, testutil.Runsc(t))
	b := create(t, e, engine.Spec{ID: "background"})
	c := boxtest.Shell("(sleep 0.3; echo late > /tmp/late) & exit 3")
	c.KeepBackground = true
	boxtest.Want(t, boxtest.Run(t, b, c), engine.Exited, 3)
	boxtest.WaitUntil(t, "the process that was left has gone on", func() bool {
		return boxtest.Run(t, b, boxtest.Shell("cat /tmp/late")).Stdout == "late\n"
	})
	c = boxtest.Shell("sleep 1000 & exit 4")
	c.KeepBackground = true
	boxtest.Want(t, boxtest.Run(t, b, c), engine.Exited, 4)
	boxtest.WantOutput(t, b, "ps -eo args | grep -c '^sleep 1000'", "1\n")
}

// TestOutOfMemory: at the memory limit the kernel of the box goes, so the box is lost, for that reason.
func TestOutOfMemory(t *testing.T) {
	e := start(t, testutil.Runsc(t))
	b := create(t, e, engine.Spec{ID: "hungry", Limits: engine.Limits{Memory: 160 << 20}})
	m := boxtest.Launch(t, b, boxtest.ManagedShell("waits", "sleep 1000"))
	o := boxtest.Run(t, b, boxtest.Python("x = []\nwhile True: x.append(b'1' * (1 << 20))"))
	if o.Verdict != engine.OOM || o.ExitCode != -1 || o.Limit != "160 MiB" {
		t.Errorf("%+v", o.Result)
	}
	if r := boxtest.Await(t, m); r.Verdict != engine.OOM {
		t.Errorf("a process beside it: %+v", r)
	}
	select {
	case <-b.Done():
	case <-time.After(boxtest.Patience):
		t.Error("the box is not lost")
	}
}

// TestOutOfMemoryRemoved: the verdict is the same if the box is removed as soon as it is lost, as sessions do.
func TestOutOfMemoryRemoved(t *testing.T) {
	e := start(t, testutil.Runsc(t))
	for range 4 {
		b := create(t, e, engine.Spec{ID: "removed", Limits: engine.Limits{Memory: 128 << 20}})
		p := boxtest.Begin(t, b, boxtest.Python("x = []\nwhile True: x.append(b'1' * (1 << 20))"))
		<-b.Done()
		boxtest.Remove(t, b)
		if r, err := p.Wait(); err != nil || r.Verdict != engine.OOM || r.Limit != "128 MiB" {
			t.Errorf("%+v, %v", r, err)
		}
	}
}

// TestLostOtherwise: a box whose sandbox is killed by someone is not lost to its memory limit, even if the
// kernel has killed something else in it for memory before.
func TestLostOtherwise(t *testing.T) {
	e := start(t, testutil.Runsc(t))
	b := create(t, e, engine.Spec{ID: "other", Limits: engine.Limits{Memory: 160 << 20}})
	p := boxtest.Begin(t, b, engine.Command{Args: []string{"sleep", "1000"}})
	named := func(part string) int {
		t.Helper()
		for _, pid := range services.Commands(t, "other") {
			if line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); strings.Contains(string(line), part) {
				return pid
			}
		}
		t.Fatalf("no process %q", part)
		return 0
	}
	hosts, err := cgroups.Detect()
	if err != nil {
		t.Fatal(err)
	}
	defer hosts.Close()
	places, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", named("\x00enter\x00")))
	if err != nil {
		t.Fatal(err)
	}
	hog := exec.Command(testutil.RequireProgram(t, "python3"), "-c", "import sys\nsys.stdin.read()\nx = []\nwhile True: x.append(b'1' * (1 << 20))")
	in, err := hog.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := hog.Start(); err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(places)) {
		at := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if at[1] == "" || at[1] == "memory" {
			if err := os.WriteFile(filepath.Join(hosts.Mountpoint(at[1]), at[2], "cgroup.procs"), []byte(fmt.Sprint(hog.Process.Pid)), 0); err != nil {
				t.Error(err)
			}
		}
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/oom_score_adj", hog.Process.Pid), []byte("1000"), 0); err != nil {
		t.Error(err)
	}
	in.Close()
	_ = hog.Wait()
	if !hog.ProcessState.Sys().(syscall.WaitStatus).Signaled() {
		_ = hog.Process.Kill()
		t.Fatalf("the test shows nothing: %v", hog.ProcessState)
	}
	if err := unix.Kill(named("runsc-sandbox\x00"), unix.SIGKILL); err != nil {
		t.Error(err)
	}
	if r, err := p.Wait(); err != nil || r.Verdict != engine.BoxLost {
		t.Errorf("%+v, %v", r, err)
	}
}

// TestRefused: what a gVisor box cannot do is refused, and nothing is silently another engine's.
func TestRefused(t *testing.T) {
	e := start(t, testutil.Runsc(t))
	b := create(t, e, engine.Spec{ID: "refused"})
	dir, m := boxtest.Workspace(t, 0, 0)
	_ = dir
	if err := b.Update(t.Context(), engine.Change{Attach: []engine.Mount{m}}); !errors.Is(err, engine.ErrUnenforceable) {
		t.Errorf("attaching a mount: %v", err)
	}
	_, err := e.Create(t.Context(), guest(engine.Spec{Limits: engine.Limits{Memory: 64 << 20}}))
	boxtest.WantField(t, err, "memory")
	o, err := boxtest.TryRun(t, b, boxtest.Shell("true"))
	if err != nil || o.Receipt.User != nil || o.Receipt.MemoryPeak != nil || o.Receipt.PIDsPeak != nil {
		t.Errorf("a receipt has figures that no one measures: %+v, %v", o.Receipt, err)
	}
}

// states lists the engine states of a launcher service that has a runsc.
func states(t testing.TB, runsc string) (s engine.EngineState, took time.Duration) {
	t.Helper()
	service := services.Start(t, native.LauncherOptions{Runtimes: native.Runtimes{GVisor: runsc}})
	c, err := service.Connect(boxtest.Patient(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	began := time.Now()
	list, err := c.Engines(boxtest.Patient(t), "", "")
	took = time.Since(began)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range list {
		if s.Isolation == spec.IsolationGVisor && s.Engine == spec.EngineOCI {
			return s, took
		}
	}
	t.Fatalf("no gvisor in %+v", list)
	return s, took
}

func TestProbe(t *testing.T) {
	s, _ := states(t, testutil.Runsc(t))
	if !s.Available() || !strings.HasPrefix(s.Runtime, "runsc ") {
		t.Errorf("%+v", s)
	}
}

// TestProbeFails: a runsc that is missing, that hangs, or that fails, is a reason within seconds, and no
// box is built with another engine instead.
func TestProbeFails(t *testing.T) {
	testutil.RequireRoot(t)
	dir := testutil.ReachableDir(t, "/run")
	testutil.RequireProgram(t, "gcc")
	const answers = `#include <stdio.h>
#include <string.h>
#include <unistd.h>
int main(int n, char **args) {
	if (n > 1 && !strcmp(args[1], "--version")) return puts("runsc version fake") < 0;
	if (n > 1 && !strcmp(args[1], "features")) return puts("{\"linux\":{\"namespaces\":[\"user\",\"mount\",\"pid\",\"ipc\",\"uts\"]}}") < 0;
	%s
}`
	for name, c := range map[string]struct{ body, reason string }{
		"hangs": {"for (;;) sleep(1000);", "after 5s"},
		"fails": {`fputs("no such processor\n", stderr); return 128;`, "no such processor"},
		"lies":  {"return 0;", "finding the sandbox"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(dir, name)
			cc := exec.Command("gcc", "-static", "-x", "c", "-o", path, "-")
			cc.Stdin = strings.NewReader(fmt.Sprintf(answers, c.body))
			if out, err := cc.CombinedOutput(); err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			s, took := states(t, path)
			if !strings.Contains(s.Reason, c.reason) || took > 20*time.Second {
				t.Errorf("after %v: %+v, want %q", took, s, c.reason)
			}
		})
	}
	e := start(t, filepath.Join(dir, "missing"))
	if _, err := e.Create(boxtest.Patient(t), guest(engine.Spec{ID: "none"})); !errors.Is(err, engine.ErrNoEngine) {
		t.Errorf("without runsc: %v", err)
	}
}
