package native

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// warmBox is a box with a zygote that all commands "python3" use.
func warmBox(t testing.TB, s engine.Spec) engine.Box {
	t.Helper()
	s.Zygotes = pythonZygote()
	return newBox(t, s)
}

// warm runs a command again and again until a spare has taken it over.
func warm(t testing.TB, b engine.Box, c engine.Command) boxtest.Outcome {
	t.Helper()
	var o boxtest.Outcome
	boxtest.WaitUntil(t, fmt.Sprintf("a spare for %q", c.Args), func() bool {
		o = boxtest.Run(t, b, c)
		return o.Warm
	})
	return o
}

// cold is the same command without a zygote.
func cold(t testing.TB, b engine.Box, c engine.Command) boxtest.Outcome {
	t.Helper()
	c.Args = append([]string{"/usr/bin/env", "-u", "_"}, c.Args...)
	o := boxtest.Run(t, b, c)
	if o.Warm {
		t.Errorf("a spare has taken over %q", c.Args)
	}
	return o
}

// surroundings prints what a process can see of itself, apart from its number, its times, its memory and its
// cgroup, which the box does not show.
const surroundings = `
import json, os, re, signal, sys
def read(path):
    with open(path) as f:
        return f.read()
status = dict(line.split(":", 1) for line in read("/proc/self/status").splitlines())
kept = "Umask State PPid TracerPid Uid Gid FDSize Groups NoNewPrivs Seccomp Threads SigQ SigPnd ShdPnd SigBlk SigIgn SigCgt CapInh CapPrm CapEff CapBnd CapAmb THP_enabled Speculation_Store_Bypass".split()
print(json.dumps({
    "status": {k: status[k].strip() for k in kept if k in status and k not in ("SigQ", "FDSize")},
    "limits": read("/proc/self/limits"), "comm": read("/proc/self/comm"), "oom": read("/proc/self/oom_score_adj"),
    "dumpable": os.stat("/proc/self/mem").st_uid, "exe": os.readlink("/proc/self/exe"),
    "fds": sorted(os.listdir("/proc/self/fd")), "cwd": os.getcwd(), "env": {k: v for k, v in os.environ.items() if k != "_"},
    "session": os.getsid(0) == os.getpid() == os.getpgrp(), "nice": os.nice(0), "argv": sys.argv, "path": sys.path,
    "affinity": sorted(os.sched_getaffinity(0)), "policy": os.sched_getscheduler(0),
    "groups": os.getgroups(), "ids": os.getresuid() + os.getresgid(), "stdin": sys.stdin.read(),
}, indent=1, sort_keys=True))
`

// TestZygoteLikeCold: a command that a spare has taken over finds itself where one is that was started.
func TestZygoteLikeCold(t *testing.T) {
	b := warmBox(t, engine.Spec{User: engine.User{UID: 1000, GID: 1000}, Limits: engine.Limits{OpenFiles: 256, FileSize: 64 << 20}})
	for _, user := range []engine.User{{UID: 1000, GID: 1000}, {}, {UID: 7, GID: 9}} {
		c := boxtest.Python(surroundings, "a", "ü b")
		c.Env, c.Dir, c.MakeDir, c.User = []string{"A=1", "B=x=y\n"}, "/tmp/new/dir", true, &user
		if user.UID != 1000 {
			c.Dir = "/tmp"
		}
		c.Stdin = strings.NewReader("input")
		o, want := boxtest.Outcome{}, boxtest.Outcome{}
		boxtest.WaitUntil(t, "a spare", func() bool {
			c.Stdin = strings.NewReader("input")
			o = boxtest.Run(t, b, c)
			return o.Warm
		})
		c.Stdin = strings.NewReader("input")
		want = cold(t, b, c)
		boxtest.Want(t, o, engine.Exited, 0)
		boxtest.Want(t, want, engine.Exited, 0)
		got, expected := strings.Split(o.Stdout, "\n"), strings.Split(want.Stdout, "\n")
		for i := range max(len(got), len(expected)) {
			if i >= len(got) || i >= len(expected) || got[i] != expected[i] {
				t.Errorf("user %v: line %d: %q, of a command that was started %q", user, i, at(got, i), at(expected, i))
			}
		}
	}
}

func at(lines []string, i int) string {
	if i < len(lines) {
		return lines[i]
	}
	return ""
}

// TestZygoteEnds: exit statuses, signals, limits and verdicts are those of any command.
func TestZygoteEnds(t *testing.T) {
	b := warmBox(t, engine.Spec{Limits: engine.Limits{Memory: 128 << 20, PIDs: 40}})
	boxtest.Want(t, warm(t, b, boxtest.Python("raise SystemExit(7)")), engine.Exited, 7)
	boxtest.Want(t, warm(t, b, boxtest.Python("1/0")), engine.Exited, 1)
	boxtest.Want(t, warm(t, b, boxtest.Python("import os, signal; os.kill(os.getpid(), signal.SIGTERM)")), engine.Signaled, 128+15)
	boxtest.Want(t, warm(t, b, boxtest.Python("raise KeyboardInterrupt")), engine.Signaled, 128+2)

	c := boxtest.Python("import time; time.sleep(1000)")
	c.Timeout, c.Grace = 50*time.Millisecond, time.Millisecond
	boxtest.Want(t, warm(t, b, c), engine.TimedOut, 124)
	c = boxtest.Python("while True: print('x' * 1000)")
	c.OutputLimit = 10_000
	boxtest.Want(t, warm(t, b, c), engine.OutputLimit, 137)

	o := warm(t, b, boxtest.Python("x = bytearray(200 << 20)"))
	boxtest.Want(t, o, engine.OOM, 137)
	o = warm(t, b, boxtest.Python(`
import os, time
while True:
    if os.fork() == 0:
        time.sleep(1000)
`))
	boxtest.Want(t, o, engine.PIDsLimit, 1)
	boxtest.Want(t, warm(t, b, boxtest.Python("print(1)")), engine.Exited, 0)

	for _, dir := range []string{"/nowhere", "/proc/1", "/etc/passwd", "/root/x"} {
		c := boxtest.Python("print(1)")
		c.Dir = dir
		warm(t, b, boxtest.Python("pass")) // so that there is a spare that refuses
		_, err := b.Start(t.Context(), c)
		c.Args = []string{"true"}
		_, want := b.Start(t.Context(), c)
		if err == nil || want == nil || err.Error() != want.Error() || errors.Is(err, engine.ErrNoDir) != errors.Is(want, engine.ErrNoDir) {
			t.Errorf("%s: %v, want %v", dir, err, want)
		}
	}
}

// TestZygoteReceipt: a command has its own receipt, which is that of a command that was started, less the start of
// the interpreter.
func TestZygoteReceipt(t *testing.T) {
	b := warmBox(t, engine.Spec{})
	work := boxtest.Python(`
import os, time
x = bytearray(60 << 20)
while sum(os.times()[:2]) < 0.2:
    pass
for _ in range(3):
    if os.fork() == 0:
        os.read(os.pipe()[0], 1)
        os._exit(0)
`)
	w, c := warm(t, b, work), cold(t, b, work)
	boxtest.Want(t, w, engine.Exited, 0)
	boxtest.Want(t, c, engine.Exited, 0)
	cpu := func(o boxtest.Outcome) time.Duration {
		return boxtest.Figure(t, "User", o.Receipt.User) + boxtest.Figure(t, "System", o.Receipt.System)
	}
	// os.times counts the time of the process in which it is, and a spare's begins with its birth.
	if w, c := cpu(w), cpu(c); w < 150*time.Millisecond || c < 150*time.Millisecond {
		t.Errorf("processor time %v, of a command that was started %v, want at least 150 ms", w, c)
	}
	const slack = 40 << 20 // what an interpreter takes itself
	if w, c := boxtest.Figure(t, "MemoryPeak", w.Receipt.MemoryPeak), boxtest.Figure(t, "MemoryPeak", c.Receipt.MemoryPeak); w < 60<<20 || w > c || c-w > slack {
		t.Errorf("peak %d bytes, of a command that was started %d", w, c)
	}
	if w, c := boxtest.Figure(t, "PIDsPeak", w.Receipt.PIDsPeak), boxtest.Figure(t, "PIDsPeak", c.Receipt.PIDsPeak); w != 4 || c != 4 {
		t.Errorf("%d processes, of a command that was started %d, want 4", w, c)
	}
	small := warm(t, b, boxtest.Python("pass"))
	if n := boxtest.Figure(t, "MemoryPeak", small.Receipt.MemoryPeak); n > 30<<20 {
		t.Errorf("a command that does nothing after one that did has a peak of %d bytes", n)
	}
}

// TestZygoteSurvivors: what a command leaves behind is killed with it.
func TestZygoteSurvivors(t *testing.T) {
	b := warmBox(t, engine.Spec{})
	o := warm(t, b, boxtest.Python(`
import os, time
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        for fd in range(3):
            os.close(fd)
        open("/tmp/survivor", "w").write(str(os.getpid()))
        os.close(w)
        time.sleep(1000)
    os._exit(0)
os.close(w)
os.read(r, 1)
`))
	boxtest.Want(t, o, engine.Exited, 0)
	boxtest.WantOutput(t, b, `kill -0 $(cat /tmp/survivor) 2>/dev/null || echo gone`, "gone\n")
}

// TestZygoteChoice: which commands a spare takes over.
func TestZygoteChoice(t *testing.T) {
	b := newBox(t, engine.Spec{Zygotes: []engine.Zygote{{Name: "py", Command: []string{"python3"}}}})
	named := boxtest.Python("print(1)")
	named.Zygote = "py"
	warm(t, b, named)
	if o := boxtest.Run(t, b, boxtest.Python("print(1)")); o.Warm {
		t.Error("a command that asks for no zygote was taken over, without match")
	}
	tty := named
	tty.TTY = &engine.WindowSize{Rows: 2, Cols: 80}
	if o := boxtest.Run(t, b, tty); o.Warm || o.Status() != 0 {
		t.Errorf("with a terminal: %+v", o)
	}
	for name, args := range map[string][]string{"py": {"true"}, "other": {"python3"}} {
		_, err := b.Start(t.Context(), engine.Command{Args: args, Zygote: name})
		boxtest.WantField(t, err, "zygote")
	}
}

// TestZygoteLimitsChange: a command has the limits of its start, as any other.
func TestZygoteLimitsChange(t *testing.T) {
	b := warmBox(t, engine.Spec{Limits: engine.Limits{OpenFiles: 256}})
	limit := boxtest.Python("import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE)[1])")
	if o := warm(t, b, limit); o.Stdout != "256\n" {
		t.Errorf("%q", o.Stdout)
	}
	boxtest.Update(t, b, engine.Limits{OpenFiles: 300})
	if o := boxtest.Run(t, b, limit); o.Stdout != "300\n" {
		t.Errorf("after a change: %q, warm %v", o.Stdout, o.Warm)
	}
	if o := warm(t, b, limit); o.Stdout != "300\n" {
		t.Errorf("warm after a change: %q", o.Stdout)
	}
}

// TestZygotePause: a pause waits for no zygote, and no spare is lost to it.
func TestZygotePause(t *testing.T) {
	b := warmBox(t, engine.Spec{})
	p, ok := b.(engine.Pausable)
	if !ok {
		t.Skip("an engine without pauses")
	}
	warm(t, b, boxtest.Python("pass"))
	for range 3 {
		if err := p.Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Start(t.Context(), boxtest.Python("pass")); !errors.Is(err, engine.ErrPaused) {
			t.Errorf("Start: %v, want ErrPaused", err)
		}
		if err := p.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		boxtest.Want(t, boxtest.Run(t, b, boxtest.Python("print(1)")), engine.Exited, 0)
	}
	boxtest.Want(t, warm(t, b, boxtest.Python("pass")), engine.Exited, 0)
}

// TestZygoteBroken: a zygote that cannot start costs its box nothing but the zygote.
func TestZygoteBroken(t *testing.T) {
	b := newBox(t, engine.Spec{Zygotes: []engine.Zygote{
		{Name: "no-module", Command: []string{"python3"}, Preload: []string{"json", "no_such_module"}, Match: true},
		{Name: "no-program", Command: []string{"python3.99"}},
	}})
	for range 4 {
		o := boxtest.Run(t, b, boxtest.Python("print(1)"))
		boxtest.Want(t, o, engine.Exited, 0)
		if o.Warm || o.Stdout != "1\n" {
			t.Errorf("warm %v, %q", o.Warm, o.Stdout)
		}
	}
	_, err := b.Start(t.Context(), engine.Command{Args: []string{"python3.99"}, Zygote: "no-program"})
	if !errors.Is(err, engine.ErrNotFound) {
		t.Errorf("a program that there is not: %v", err)
	}
}

// TestZygoteRemoved: a box goes with its zygotes, in whatever state they are. TestMain looks for what is left.
func TestZygoteRemoved(t *testing.T) {
	e := start(t)
	for commands := range 6 {
		b := create(t, e, engine.Spec{Zygotes: []engine.Zygote{{Name: "python", Command: []string{"python3"}, Match: true, Spares: 3}}})
		for range commands {
			boxtest.Run(t, b, boxtest.Python("pass"))
		}
		var left engine.Process
		if commands%2 == 1 {
			left = boxtest.Begin(t, b, boxtest.Python("import time; time.sleep(1000)"))
		}
		boxtest.Remove(t, b)
		if left != nil {
			if r := boxtest.Wait(t, left); r.Verdict != engine.BoxLost {
				t.Errorf("a command of a box that was removed: %+v", r)
			}
		}
	}
}

// others is the start of a script: it lists the other processes of the user that are no relatives.
const others = `
import os
mine = {os.getpid()}
def alike(pid):
    try:
        with open("/proc/%d/status" % pid) as f:
            s = dict(line.split(":", 1) for line in f.read().splitlines())
        return s["Uid"].split()[0] == str(os.getuid()) and int(s["PPid"]) not in mine
    except (FileNotFoundError, ProcessLookupError):
        return False
def others():
    return [int(p) for p in os.listdir("/proc") if p.isdigit() and int(p) not in mine | {1} and alike(int(p))]
`

// TestZygoteKilled: a command of the same user may kill zygotes and spares; then commands are started, and later
// there is a zygote again.
func TestZygoteKilled(t *testing.T) {
	b := warmBox(t, engine.Spec{User: engine.User{UID: 1000, GID: 1000}})
	warm(t, b, boxtest.Python("pass"))
	boxtest.Want(t, boxtest.Run(t, b, engine.Command{Args: []string{"/usr/bin/python3", "-c", others + `
import signal
for pid in others():
    os.kill(pid, signal.SIGKILL)
`}}), engine.Exited, 0)
	o := boxtest.Run(t, b, boxtest.Python("print(2)"))
	boxtest.Want(t, o, engine.Exited, 0)
	if o.Stdout != "2\n" {
		t.Errorf("%q", o.Stdout)
	}
	if o := warm(t, b, boxtest.Python("print(3)")); o.Stdout != "3\n" {
		t.Errorf("%q", o.Stdout)
	}
}

// TestZygoteLowered: what a command of the same user does to the limits of zygotes and spares reaches no other command.
func TestZygoteLowered(t *testing.T) {
	for what, script := range map[string]string{
		"file size": "import resource\nfor pid in others():\n    resource.prlimit(pid, resource.RLIMIT_FSIZE, (1, 1))",
		"oom score": "for pid in others():\n    open('/proc/%d/oom_score_adj' % pid, 'w').write('900')",
	} {
		b := warmBox(t, engine.Spec{User: engine.User{UID: 1000, GID: 1000}})
		warm(t, b, boxtest.Python("pass"))
		boxtest.Want(t, boxtest.Run(t, b, engine.Command{Args: []string{"/usr/bin/python3", "-c", others + script}}), engine.Exited, 0)
		for range 4 {
			o := boxtest.Run(t, b, boxtest.Python("import os; assert os.write(os.open('/tmp/f', os.O_RDWR | os.O_CREAT), b'x' * 1000) == 1000; print(open('/proc/self/oom_score_adj').read())"))
			boxtest.Want(t, o, engine.Exited, 0)
			if o.Stdout != "0\n\n" {
				t.Errorf("%s: warm %v: %q", what, o.Warm, o.Stdout)
			}
		}
	}
}

// TestZygoteStopped: a command of the same user may stop spares. That delays a command, which then runs once.
func TestZygoteStopped(t *testing.T) {
	if !testutil.Full() {
		t.Skip("takes 5 s: TestSpareFails of package agent has a shorter bound")
	}
	b := warmBox(t, engine.Spec{})
	warm(t, b, boxtest.Python("pass"))
	boxtest.Want(t, boxtest.Run(t, b, engine.Command{Args: []string{"/usr/bin/python3", "-c", others + `
import signal
for pid in others():
    os.kill(pid, signal.SIGSTOP)
`}}), engine.Exited, 0)
	c := boxtest.Python("import sys; print(sys.stdin.read()); open('/tmp/runs', 'a').write('x')")
	c.Stdin = strings.NewReader("input")
	o := boxtest.Run(t, b, c)
	boxtest.Want(t, o, engine.Exited, 0)
	if o.Stdout != "input\n" {
		t.Errorf("%q", o.Stdout)
	}
	boxtest.WantOutput(t, b, "cat /tmp/runs", "x")
	warm(t, b, boxtest.Python("pass"))
}

// TestZygoteClosed: no process of the same user, nor of user 0, gets at the memory, the descriptors or the registers of
// a zygote or a spare. It does at those of another command, which shows that the attacks are real.
func TestZygoteClosed(t *testing.T) {
	b := warmBox(t, engine.Spec{User: engine.User{UID: 1000, GID: 1000}})
	victim := boxtest.Begin(t, b, engine.Command{Args: []string{"sleep", "1000"}})
	defer func() { _ = victim.Signal(unix.SIGKILL); boxtest.Wait(t, victim) }()
	attack := others + `
import ctypes, errno, sys
libc = ctypes.CDLL(None, use_errno=True)
class iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
def tries(pid):
    done = []
    def attempt(name, call):
        try:
            call()
            done.append(name)
        except OSError as e:
            # ESRCH: what makes a spare has ended.
            if e.errno not in (errno.EPERM, errno.EACCES, errno.ESRCH):
                raise
    attempt("mem", lambda: open("/proc/%d/mem" % pid, "r+b").close())
    attempt("maps", lambda: open("/proc/%d/maps" % pid).read())
    attempt("environ", lambda: open("/proc/%d/environ" % pid).read())
    attempt("fd", lambda: os.readlink("/proc/%d/fd/0" % pid))
    attempt("reopen", lambda: os.close(os.open("/proc/%d/fd/0" % pid, os.O_RDONLY)))
    attempt("cwd", lambda: os.readlink("/proc/%d/cwd" % pid))
    def readv():
        buffer = ctypes.create_string_buffer(8)
        mine, theirs = iovec(ctypes.addressof(buffer), 8), iovec(0x10000, 8)
        if libc.process_vm_readv(pid, ctypes.byref(mine), 1, ctypes.byref(theirs), 1, 0) < 0 and ctypes.get_errno() != errno.EFAULT:
            raise OSError(ctypes.get_errno(), "")
    attempt("readv", readv)
    def trace():
        if libc.ptrace(0x4206, pid, None, None) < 0:  # PTRACE_SEIZE
            raise OSError(ctypes.get_errno(), "")
        libc.ptrace(17, pid, None, None)  # PTRACE_DETACH, which it may not want when it runs
    attempt("trace", trace)
    return done
for pid in others():
    with open("/proc/%d/cmdline" % pid) as f:
        name = f.read().split("\0")[0]
    print(name, ",".join(tries(pid)))
`
	for _, user := range []engine.User{{UID: 1000, GID: 1000}, {}} {
		c := boxtest.Python("pass")
		c.User = &user
		warm(t, b, c)
		// Two spares, or one and one that is being made, and the zygote; it is another that runs this.
		o := boxtest.Run(t, b, engine.Command{Args: []string{"/usr/bin/python3", "-c", attack}, User: &user})
		boxtest.Want(t, o, engine.Exited, 0)
		lines := strings.Split(strings.TrimSuffix(o.Stdout, "\n"), "\n")
		zygotes := 0
		for _, line := range lines {
			name, got, _ := strings.Cut(line, " ")
			switch {
			case name == "python3" && got != "":
				t.Errorf("user %v: of a zygote or a spare: %s", user, got)
			case name == "python3":
				zygotes++
			case name == "sleep" && got != "mem,maps,environ,fd,reopen,cwd,readv,trace":
				t.Errorf("user %v: of another command only: %s", user, got)
			}
		}
		if zygotes == 0 || user.UID == 1000 && !slices.ContainsFunc(lines, func(s string) bool { return strings.HasPrefix(s, "sleep ") }) {
			t.Errorf("user %v: %q", user, o.Stdout)
		}
	}
}
