package conformance

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
)

// noShell: what a shell would expand arrives as it was given.
func (e *suite) noShell(t testing.TB) {
	b := e.create(t, engine.Spec{})
	args := []string{"$HOME", "`id`", "$(id)", ";", "&&", "|", ">", "*", "~", "a b", "", " ", "\n", "'", `"`, `\`, "-c", "--", "ä€", "\xff\xfe", "#"}
	o := boxtest.Run(t, b, boxtest.Python("import sys, os, json; print(json.dumps([list(os.fsencode(a)) for a in sys.argv[1:]]))", args...))
	boxtest.Want(t, o, engine.Exited, 0)
	var raw [][]int
	if err := json.Unmarshal([]byte(o.Stdout), &raw); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, numbers := range raw {
		var s []byte
		for _, n := range numbers {
			s = append(s, byte(n))
		}
		got = append(got, string(s))
	}
	if !slices.Equal(got, args) {
		t.Errorf("arguments arrived as %q, want %q", got, args)
	}
}

// environment: a command has only the given variables, those that programs take for granted, and the number
// of processors of the box if the host has more.
func (e *suite) environment(t testing.TB) {
	t.Setenv("BOXD_TEST_SECRET", "hunter2")
	b := e.create(t, engine.Spec{})
	defaults := map[string]string{
		"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
		"HOME": "/home/box", "USER": "root", "LANG": "C.UTF-8", "TMPDIR": "/tmp",
	}
	if runtime.NumCPU() > 1 {
		defaults["GOMAXPROCS"], defaults["OMP_NUM_THREADS"] = "1", "1"
	}
	for _, c := range []struct {
		given   []string
		changed map[string]string
	}{
		{nil, nil},
		{[]string{"GOMAXPROCS=7", "OMP_NUM_THREADS="}, map[string]string{"GOMAXPROCS": "7", "OMP_NUM_THREADS": ""}},
		{[]string{"A=1", "B=", "C=x=y z", "D=a\nb", "ä=ö"}, map[string]string{"A": "1", "B": "", "C": "x=y z", "D": "a\nb", "ä": "ö"}},
		{[]string{"HOME=/tmp", "USER=me", "LANG=C", "TMPDIR=", "PATH=/usr/bin:/bin"}, map[string]string{"HOME": "/tmp", "USER": "me", "LANG": "C", "TMPDIR": "", "PATH": "/usr/bin:/bin"}},
		{[]string{"LD_PRELOAD=/nowhere.so"}, map[string]string{"LD_PRELOAD": "/nowhere.so"}},
	} {
		want := maps.Clone(defaults)
		maps.Copy(want, c.changed)
		got := map[string]string{}
		o := boxtest.Run(t, b, engine.Command{Args: []string{"env", "-0"}, Env: c.given})
		for kv := range strings.SplitSeq(strings.TrimSuffix(o.Stdout, "\x00"), "\x00") {
			key, value, _ := strings.Cut(kv, "=")
			got[key] = value
		}
		if !maps.Equal(got, want) {
			t.Errorf("with %q: %q, want %q", c.given, got, want)
		}
	}
}

// user: any user of the box, with the name that the box knows it by, and in
// no group but its own.
func (e *suite) user(t testing.TB) {
	plain := e.create(t, engine.Spec{})
	script := `id -u; id -g; id -G; id -un 2>&1; echo $USER; touch /tmp/f-$(id -u) && stat -c %u:%g /tmp/f-$(id -u); test -w $HOME && echo home`
	for _, u := range []engine.User{{}, {UID: 1, GID: 1}, {UID: 1000, GID: 1000}, {UID: 65534, GID: 65534}, {UID: 4242, GID: 17}} {
		b := e.create(t, engine.Spec{User: u})
		o := boxtest.Run(t, b, boxtest.Shell(script))
		lines := strings.Split(o.Stdout, "\n")
		ids := fmt.Sprintf("%d\n%d\n%d\n", u.UID, u.GID, u.GID)
		if !strings.HasPrefix(o.Stdout, ids) || len(lines) != 8 || lines[3] != lines[4] ||
			lines[5] != fmt.Sprintf("%d:%d", u.UID, u.GID) || lines[6] != "home" {
			t.Errorf("box of %+v: %q, %q", u, o.Stdout, o.Stderr)
		}
		c := boxtest.Shell("id -u; id -g; id -G")
		c.User = &u
		if o := boxtest.Run(t, plain, c); o.Stdout != ids {
			t.Errorf("command of %+v: %q, %q", u, o.Stdout, o.Stderr)
		}
	}
}

// credentials: no command of any user has a capability, now or later.
func (e *suite) credentials(t testing.TB) {
	b := e.create(t, engine.Spec{})
	for _, u := range []engine.User{{}, {UID: 1000, GID: 1000}} {
		c := boxtest.Shell(`grep -E '^(Cap|NoNewPrivs|Groups|Seccomp:)' /proc/self/status | tr -d ' \t'; ulimit -c; cat /proc/self/oom_score_adj`)
		c.User = &u
		o := boxtest.Run(t, b, c)
		zero := strings.Repeat("0", 16)
		wanted := "Groups:\nCapInh:" + zero + "\nCapPrm:" + zero + "\nCapEff:" + zero + "\nCapBnd:" + zero + "\nCapAmb:" + zero + "\nNoNewPrivs:1\nSeccomp:2\n0\n"
		if !strings.HasPrefix(o.Stdout, wanted) {
			t.Errorf("user %d: %q, want %q", u.UID, o.Stdout, wanted)
		}
	}
}

func (e *suite) dir(t testing.TB) {
	b := e.create(t, engine.Spec{})
	boxtest.WantOutput(t, b, `ln -s /proc/self/fd /tmp/to-fd; ln -s /proc /tmp/to-proc; ln -s /usr/bin /tmp/to-bin; ln -s loop /tmp/loop; mkdir -m 0 /tmp/closed; touch /tmp/file; echo ok`, "ok\n")
	_, m := boxtest.Workspace(t, 0, 0)
	spec := engine.Spec{}
	spec.Mounts = append(spec.Mounts, m)
	withWorkspace := e.create(t, spec)
	user := &engine.User{UID: 1000, GID: 1000}
	for _, c := range []struct {
		name string
		box  engine.Box
		cmd  engine.Command
		want string // "" is an error
		err  error  // nil: any
	}{
		{"default", b, engine.Command{}, "/home/box", nil},
		{"default with workspace", withWorkspace, engine.Command{}, "/workspace", nil},
		{"given", b, engine.Command{Dir: "/usr/bin"}, "/usr/bin", nil},
		{"root", b, engine.Command{Dir: "/"}, "/", nil},
		{"not clean", b, engine.Command{Dir: "/usr/../usr//bin/."}, "/usr/bin", nil},
		{"symlink", b, engine.Command{Dir: "/tmp/to-bin"}, "/usr/bin", nil},
		{"missing", b, engine.Command{Dir: "/tmp/a/b"}, "", engine.ErrNoDir},
		{"made", b, engine.Command{Dir: "/tmp/a/b/c", MakeDir: true}, "/tmp/a/b/c", nil},
		{"made before", b, engine.Command{Dir: "/tmp/a/b/c", MakeDir: true}, "/tmp/a/b/c", nil},
		{"made by another user", b, engine.Command{Dir: "/tmp/u/v", MakeDir: true, User: user}, "/tmp/u/v", nil},
		{"made where it cannot", b, engine.Command{Dir: "/usr/made", MakeDir: true}, "", nil},
		{"made where it may not", b, engine.Command{Dir: "/home/box/made", MakeDir: true, User: user}, "", nil},
		{"file", b, engine.Command{Dir: "/tmp/file"}, "", nil},
		{"below a file", b, engine.Command{Dir: "/tmp/file/x", MakeDir: true}, "", nil},
		{"loop of links", b, engine.Command{Dir: "/tmp/loop"}, "", nil},
		{"closed", b, engine.Command{Dir: "/tmp/closed", User: user}, "", nil},
		{"proc", b, engine.Command{Dir: "/proc/self"}, "", engine.ErrInvalid},
		{"proc by a link", b, engine.Command{Dir: "/tmp/to-proc"}, "", nil},
		{"proc by a link, made", b, engine.Command{Dir: "/tmp/to-proc/x", MakeDir: true}, "", nil},
		{"descriptors by a link", b, engine.Command{Dir: "/tmp/to-fd"}, "", nil},
		{"a descriptor by a link", b, engine.Command{Dir: "/tmp/to-fd/3"}, "", nil},
		{"another", b, engine.Command{Dir: "/tmp/to-fd/3/../../.."}, "", nil},
		{"relative", b, engine.Command{Dir: "tmp"}, "", engine.ErrInvalid},
	} {
		sub(t, c.name, func(t testing.TB) {
			c.cmd.Args = []string{"pwd", "-P"}
			o, err := boxtest.TryRun(t, c.box, c.cmd)
			switch {
			case c.want != "":
				if err != nil || o.Stdout != c.want+"\n" {
					t.Errorf("%q, %v, want %q", o.Stdout, err, c.want)
				}
			case err == nil || c.err != nil && !errors.Is(err, c.err):
				t.Errorf("%+v, error %v, want error %v", o, err, c.err)
			case !strings.Contains(err.Error(), c.cmd.Dir) || strings.Contains(err.Error(), "\n"):
				t.Errorf("error %q: want one line with the directory", err)
			}
		})
	}
	// What was made belongs to the user it was made for.
	boxtest.WantOutput(t, b, "stat -c %u:%g /tmp/a /tmp/a/b/c /tmp/u /tmp/u/v", "0:0\n0:0\n1000:1000\n1000:1000\n")
}

// exitStatus: all 256 of them, and every signal that can end a process.
func (e *suite) exitStatus(t testing.TB) {
	b := e.create(t, engine.Spec{})
	step := 1
	if testing.Short() {
		step = 15
	}
	for code := 0; code < 256; code += step {
		o := boxtest.Run(t, b, boxtest.Shell(fmt.Sprintf("exit %d", code)))
		if o.Verdict != engine.Exited || o.ExitCode != code || o.Signal != 0 || o.Status() != code {
			t.Errorf("exit %d: %+v", code, o.Result)
		}
	}
	for _, sig := range []syscall.Signal{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 24, 26, 27, 29, 31, 34, 64} {
		o := boxtest.Run(t, b, boxtest.Shell(fmt.Sprintf("kill -%d $$; sleep 3600", sig)))
		if o.Verdict != engine.Signaled || o.ExitCode != -1 || o.Signal != sig || o.Status() != 128+int(sig) {
			t.Errorf("signal %d: %+v", sig, o.Result)
		}
	}
}

func (e *suite) startErrors(t testing.TB) {
	b := e.create(t, engine.Spec{})
	boxtest.WantOutput(t, b, `set -e; cd /tmp; echo echo hi > plain; echo hi > text; chmod 755 text; cp /bin/true mode; chmod 644 mode; printf '#!/nowhere\n' > interp; chmod 755 interp
		cp /bin/true /dev/shm/noexec; printf '\177ELF' > elf; chmod 755 elf; echo ok`, "ok\n")
	for _, c := range []struct {
		name string
		args []string
		err  error
	}{
		{"no such name", []string{"nosuchprogram"}, engine.ErrNotFound},
		{"no such path", []string{"/no/such/program"}, engine.ErrNotFound},
		{"below a file", []string{"/bin/sh/x"}, engine.ErrNotFound},
		{"interpreter missing", []string{"/tmp/interp"}, engine.ErrNotFound},
		{"not executable", []string{"/tmp/mode"}, engine.ErrNotExecutable},
		{"plain file", []string{"/tmp/plain"}, engine.ErrNotExecutable},
		{"no format", []string{"/tmp/text"}, engine.ErrNotExecutable},
		{"cut off", []string{"/tmp/elf"}, engine.ErrNotExecutable},
		{"directory", []string{"/tmp"}, engine.ErrNotExecutable},
		{"noexec", []string{"/dev/shm/noexec"}, engine.ErrNotExecutable},
		{"current directory not in PATH", []string{"mode"}, engine.ErrNotFound},
	} {
		o, err := boxtest.TryRun(t, b, engine.Command{Args: c.args, Dir: "/tmp"})
		if !errors.Is(err, c.err) || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), c.args[0]) {
			t.Errorf("%s: %+v, %v, want %v", c.name, o, err, c.err)
		}
	}
	// The child of a failed start may end late. That must not end the box, or other starts.
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 10 {
				if _, err := boxtest.TryRun(t, b, engine.Command{Args: []string{"/tmp/mode"}}); !errors.Is(err, engine.ErrNotExecutable) {
					t.Errorf("one of many: %v", err)
				}
			}
		})
	}
	wg.Wait()
	// A program further down in PATH is found behind one that cannot be executed.
	o := boxtest.Run(t, b, engine.Command{Args: []string{"true"}, Env: []string{"PATH=/nowhere:/tmp:/usr/bin:/bin"}})
	boxtest.Want(t, o, engine.Exited, 0)
}

// descriptors: a command has 0, 1 and 2 and nothing else.
func (e *suite) descriptors(t testing.TB) {
	b := e.create(t, engine.Spec{})
	list := boxtest.Python("import os\nfor f in os.listdir('/proc/self/fd'):\n try: os.fstat(int(f))\n except OSError: continue\n print(f)")
	o := boxtest.Run(t, b, list)
	if got := strings.Fields(o.Stdout); !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("open descriptors: %v", got)
	}
	// The same, while fifty others run.
	for range 50 {
		boxtest.Begin(t, b, boxtest.Shell("exec sleep 3600"))
	}
	o = boxtest.Run(t, b, list)
	if got := strings.Fields(o.Stdout); !slices.Equal(got, []string{"0", "1", "2"}) {
		t.Errorf("open descriptors among others: %v", got)
	}
}

// session: every command is the leader of a session without a terminal, with
// no signal blocked or ignored.
func (e *suite) session(t testing.TB) {
	b := e.create(t, engine.Spec{})
	o := boxtest.Run(t, b, boxtest.Python(`
import os, signal
print(os.getsid(0) == os.getpid() == os.getpgrp())
print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])))
print(open('/proc/self/status').read().split('SigIgn:')[1].split()[0])
print(oct(os.umask(0)))
try: os.open('/dev/tty', os.O_RDWR)
except OSError as e: print(e.strerror)
`))
	// Python itself ignores SIGPIPE (13) and SIGXFSZ (25).
	if o.Stdout != "True\n[]\n0000000001001000\n0o22\nNo such device or address\n" {
		t.Errorf("%q, %q", o.Stdout, o.Stderr)
	}
}

// reopenStreams: the box's end of a stream can be opened again by name, and
// nothing of the caller with it.
func (e *suite) reopenStreams(t testing.TB) {
	for _, u := range []engine.User{{}, {UID: 1000, GID: 1000}} {
		b := e.create(t, engine.Spec{User: u})
		c := boxtest.Shell("cat /dev/stdin; echo out > /dev/stdout; echo err > /dev/stderr; echo more | tee /dev/stderr > /dev/fd/1; cat < /proc/self/fd/0")
		c.Stdin = strings.NewReader("in\n")
		o := boxtest.Run(t, b, c)
		if o.Stdout != "in\nout\nmore\n" || o.Stderr != "err\nmore\n" {
			t.Errorf("user %d: %q, %q", u.UID, o.Stdout, o.Stderr)
		}
	}
}

// procIsPrivate: a box sees its own processes only.
func (e *suite) procIsPrivate(t testing.TB) {
	b := e.create(t, engine.Spec{})
	o := boxtest.Run(t, b, boxtest.Shell("echo /proc/[0-9]*; echo $$"))
	pids, own, _ := strings.Cut(strings.TrimSpace(o.Stdout), "\n")
	if pids != "/proc/1 /proc/"+own || len(own) > 3 {
		t.Errorf("%q: want PID 1 and the shell itself", o.Stdout)
	}
}

// timers: commands have the kernel's timers, though those of their agent are coarser
// once it has a managed process.
func (e *suite) timers(t testing.TB) {
	s := e.private(t)
	b := s.create(t, engine.Spec{})
	const timers = "cat /proc/self/timerslack_ns; sh -c 'cat /proc/self/timerslack_ns'"
	boxtest.WantOutput(t, b, timers, "50000\n50000\n")
	p, err := b.Launch(t.Context(), engine.Managed{Key: "p", Args: []string{"sh", "-c", timers + "; exec sleep 1000 >&-"}})
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 12)
	for n := 0; n < len(buf); {
		m, _, err := p.Stdio().Stdout.ReadAt(t.Context(), buf[n:], int64(n))
		if err != nil {
			t.Fatal(err)
		}
		n += m
	}
	if string(buf) != "50000\n50000\n" {
		t.Errorf("a managed process has %q", buf)
	}
	boxtest.WantOutput(t, b, timers, "50000\n50000\n")
}
