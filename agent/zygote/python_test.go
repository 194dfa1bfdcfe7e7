package zygote

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/testutil"
)

// zipOf returns an archive of files, given as names and contents.
func zipOf(files ...string) string {
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for i := 0; i < len(files); i += 2 {
		f, err := w.Create(files[i])
		if err != nil {
			panic(err)
		}
		f.Write([]byte(files[i+1]))
	}
	w.Close()
	return b.String()
}

// A command shows the same whether a new interpreter or a spare runs it.
func TestSameAsANewInterpreter(t *testing.T) {
	z := newZygote(t)
	for _, s := range scripts {
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.compare(t, z)
		})
	}
}

// So it is with modules that are there before, except that sys.modules has them.
func TestSameWithPreloadedModules(t *testing.T) {
	z := newZygote(t, "json", "re", "random", "logging", "threading", "subprocess", "asyncio", "ctypes", "multiprocessing.util")
	for i, s := range scripts {
		// A trace function sees that preloaded modules, too, end.
		if strings.HasPrefix(s.name, "state") || s.name == "trace" || !testutil.Full() && i%8 != 0 && !strings.Contains(s.name, "C library") && !strings.Contains(s.name, "spawn") {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.compare(t, z)
		})
	}
}

// The statements of random programs: what they print shows in which order things happen.
var statements = []string{
	"print('text %d')",
	"print('error %d', file=sys.stderr)",
	"sys.stdout.write('no newline %d')",
	"sys.stdout.flush()",
	"atexit.register(print, 'atexit %d')",
	"keep.append(Finalized(%d))",
	"cycle = Finalized(%d); cycle.me = cycle; del cycle",
	"f%[1]d = open(1, 'w', closefd=False); f%[1]d.write('file %[1]d\\n')",
	"def g%[1]d():\n  try: yield\n  finally: print('generator %[1]d')\nkeep.append(g%[1]d()); next(keep[-1])",
	"threading.Thread(target=print, args=('thread %d',)).start()",
	"threading.Thread(target=lambda: (time.sleep(0.05 + 0.2 * %[1]d), print('late thread %[1]d'))).start()",
	"if os.fork() == 0: print('child %d'); sys.exit()\nelse: os.wait()",
	"subprocess.run(['echo', 'subprocess %d'])",
	"weakref.finalize(keep, print, 'finalize %d')",
	"sys.modules['m%[1]d'] = m = types.ModuleType('m%[1]d'); m.x = Finalized(%[1]d); del m",
	"try: 1/0\nexcept ZeroDivisionError: keep.append(sys.exc_info())",
	"sys.excepthook = lambda *a: print('hook %d', a[0].__name__)",
	"Finalized.last = Finalized(%d)",
	"builtins.x%[1]d = Finalized(%[1]d)",
	"sys.exit(%d)",
	"raise ValueError(%d)",
	"raise KeyboardInterrupt",
}

const head = `
import atexit, builtins, os, subprocess, sys, threading, time, types, weakref
keep = []
class Finalized:
  def __init__(self, n): self.n = n
  def __del__(self): print('del', self.n)
`

// Programs that nobody has thought of end in the same way, too.
func TestRandomPrograms(t *testing.T) {
	seed, count := uint64(1), 12
	if testutil.Full() {
		seed, count = rand.Uint64(), 300
	}
	z := newZygote(t, "json")
	for i := range count {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		program := head
		for n := range 1 + r.IntN(6) {
			statement := statements[r.IntN(len(statements))]
			if strings.Contains(statement, "%") {
				statement = fmt.Sprintf(statement, n)
			}
			program += statement + "\n"
		}
		s := code(fmt.Sprint(i), program)
		if i%3 == 1 {
			s = file(s.name, program)
		}
		t.Run(fmt.Sprint(seed, "-", i), func(t *testing.T) {
			t.Parallel()
			if s.compare(t, z); t.Failed() {
				t.Log(program)
			}
		})
	}
}

// The interpreter's own options are those of all commands, which have them too.
func TestOptions(t *testing.T) {
	options := []string{"-B", "-O", "-s"}
	control, err := loadCommand(t, append([]string{"python3"}, options...), baseEnv, "json")
	if err != nil {
		t.Fatal(err)
	}
	z := &warm{control: control}
	for _, s := range []script{
		code("flags", "import sys; print(sys.argv, getattr(sys, 'orig_argv', 0), sys.flags, sys.dont_write_bytecode, __debug__)\nassert False", "a"),
		executed(code("other options", "import sys; print(sys.flags)")),
	} {
		if !s.cold {
			s.args = append(options, s.args...)
		}
		t.Run(s.name, func(t *testing.T) { s.compare(t, z) })
	}
	t.Run("unknown", func(t *testing.T) {
		if _, err := loadCommand(t, []string{"python3", "-x"}, baseEnv); err == nil || !strings.Contains(err.Error(), "option -x of the interpreter is not supported") {
			t.Error(err)
		}
	})
}

// Two spares have values of their own, although they come from one process.
func TestRandomValuesDiffer(t *testing.T) {
	z := newZygote(t, "random", "uuid", "tempfile", "multiprocessing.process")
	s := code("random", "import random, uuid, tempfile, multiprocessing.process as m; print(random.random(), uuid.uuid4(), next(tempfile._get_candidate_names()), bytes(m.current_process().authkey).hex())")
	first, second := s.play(t, t.TempDir(), z.begin(t, nil)), s.play(t, t.TempDir(), z.begin(t, nil))
	if first.status != "exit 0" || second.status != "exit 0" {
		t.Fatal(first, second)
	}
	words := strings.Fields(second.stdout)
	for i, word := range strings.Fields(first.stdout) {
		if word == words[i] {
			t.Errorf("both have %q", word)
		}
	}
}

// What a zygote cannot preload, or cannot imitate, it says in one line.
func TestRefusals(t *testing.T) {
	modules := t.TempDir()
	writeFile(t, filepath.Join(modules, "broken.py"), "1/0")
	writeFile(t, filepath.Join(modules, "ends.py"), "import os; os._exit(3)")
	writeFile(t, filepath.Join(modules, "exits.py"), "import sys; sys.exit('bye')")
	writeFile(t, filepath.Join(modules, "threads.py"), "import threading, time; threading.Thread(target=time.sleep, args=(100,), daemon=True).start()")
	writeFile(t, filepath.Join(modules, "freezes.py"), "import gc; gc.freeze()")
	more := func(variables ...string) []string { return append(append([]string(nil), baseEnv...), variables...) }
	for _, c := range []struct {
		name, want string
		env        []string
		preload    string
	}{
		{"missing", "zygote: preloading nothing_here: ModuleNotFoundError: No module named 'nothing_here'", baseEnv, "nothing_here"},
		{"broken", "zygote: preloading broken: ZeroDivisionError: division by zero", more("PYTHONPATH=" + modules), "broken"},
		{"exits", "zygote: preloading exits: SystemExit: bye", more("PYTHONPATH=" + modules), "exits"},
		{"ends", "zygote: starting: " + ErrEnded.Error(), more("PYTHONPATH=" + modules), "ends"},
		{"thread", "a preloaded module has started a thread", more("PYTHONPATH=" + modules), "threads"},
		{"freeze", "a preloaded module has called gc.freeze", more("PYTHONPATH=" + modules), "freezes"},
		{"unbuffered", "PYTHONUNBUFFERED is set", more("PYTHONUNBUFFERED=1"), "json"},
		{"relative PATH", "not found by an absolute PATH", append([]string{"PATH=.:" + searchPath}, baseEnv[1:]...), "json"},
		{"relative PYTHONPATH", "PYTHONPATH has a relative part", more("PYTHONPATH=x"), "json"},
		{"encoding", "encoding of file names", more("LC_ALL=C", "PYTHONUTF8=0", "PYTHONCOERCECLOCALE=0"), "json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if _, err := load(t, c.env, c.preload); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	t.Run("wrapper", func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "python3")
		writeFile(t, path, "#!/bin/sh\nexec "+interpreter(t)+" \"$@\"\n")
		if _, err := load(t, append([]string{"PATH=" + dir}, baseEnv[1:]...), "json"); err == nil || !strings.Contains(err.Error(), path+" starts another program") {
			t.Error(err)
		}
	})
}

func writeFile(t testing.TB, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
}

// Spares know that a module has changed on disk, and so does the zygote.
func TestChangedModule(t *testing.T) {
	modules := t.TempDir()
	path := filepath.Join(modules, "changing.py")
	writeFile(t, path, "x = 1")
	env := append(append([]string(nil), baseEnv...), "PYTHONPATH="+modules)
	control, err := load(t, env, "changing")
	if err != nil {
		t.Fatal(err)
	}
	z := &warm{control: control}
	s := code("changing", "import changing; print(changing.x)")
	s.env = []string{"PYTHONPATH=" + modules}
	var isWarm bool
	if got := s.play(t, t.TempDir(), z.begin(t, &isWarm)); got.stdout != "1\n" || !isWarm {
		t.Errorf("%+v, warm: %v", got, isWarm)
	}
	writeFile(t, filepath.Join(modules, "unrelated.py"), "")
	if got := s.play(t, t.TempDir(), z.begin(t, &isWarm)); got.stdout != "1\n" || !isWarm {
		t.Errorf("after a change of something else: %+v, warm: %v", got, isWarm)
	}
	spare := z.fork(t)
	defer unix.Close(spare.FD)
	writeFile(t, path, "x = 123")
	got := s.play(t, t.TempDir(), func(c Command) int {
		isWarm, err = spare.Run(c, patience)
		if err != nil {
			t.Fatal(err)
		}
		return spare.PID
	})
	if got.stdout != "123\n" || isWarm {
		t.Errorf("after the change: %+v, warm: %v", got, isWarm)
	}
	if _, err := Fork(control, patience); err == nil || !strings.Contains(err.Error(), "stale: ") {
		t.Errorf("Fork of a stale zygote: %v", err)
	}
	if _, err := Fork(control, patience); !errors.Is(err, ErrEnded) {
		t.Errorf("Fork of a zygote that has ended: %v", err)
	}
}

// A command that cannot be started has the error that it would have without a spare.
func TestSetupErrors(t *testing.T) {
	z := newZygote(t)
	dir := t.TempDir()
	writeFile(t, filepath.Join(dir, "file"), "")
	for _, c := range []struct {
		name    string
		command Command
		want    error
	}{
		{"no directory", Command{Dir: dir + "/nothing"}, &SetupError{"chdir", unix.ENOENT}},
		{"file", Command{Dir: dir + "/file", MakeDir: true}, &SetupError{"chdir", unix.ENOTDIR}},
		{"below a file", Command{Dir: dir + "/file/x", MakeDir: true}, &SetupError{"chdir", unix.ENOTDIR}},
		{"no permission", Command{Dir: "/proc/self/nothing/x", MakeDir: true}, &SetupError{"mkdir", unix.ENOENT}},
		{"proc", Command{Dir: "/proc/self"}, &SetupError{"cwd", unix.EPERM}},
		{"no program", Command{Dir: "/", Args: []string{"nothing-here"}}, &SetupError{"exec", unix.ENOENT}},
		{"not executable", Command{Dir: "/", Args: []string{"/etc/passwd"}}, &SetupError{"exec", unix.EACCES}},
		{"directory", Command{Dir: "/", Args: []string{"/etc"}}, &SetupError{"exec", unix.EACCES}},
		{"empty name", Command{Dir: "/", Args: []string{""}}, ErrCold},
		{"twice", Command{Dir: "/", Env: append([]string{"A=1", "A=2"}, baseEnv...)}, ErrCold},
		{"no value", Command{Dir: "/", Env: append([]string{"A"}, baseEnv...)}, ErrCold},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.command.Args == nil {
				c.command.Args = []string{"python3", "-c", "print(1)"}
			}
			if c.command.Env == nil {
				c.command.Env = baseEnv
			}
			null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer null.Close()
			c.command.Stdio = [3]int{int(null.Fd()), int(null.Fd()), int(null.Fd())}
			spare := z.fork(t)
			_, err = spare.Run(c.command, patience)
			unix.Close(spare.FD)
			wait(t, spare.PID)
			if fmt.Sprint(err) != c.want.Error() {
				t.Errorf("%v, want %v", err, c.want)
			}
		})
	}
}

// A missing directory is made if the command asks for it.
func TestMakeDir(t *testing.T) {
	z := newZygote(t)
	dir := filepath.Join(t.TempDir(), "a/b/c")
	s := code("cwd", "import os; print(os.getcwd())")
	got := s.play(t, t.TempDir(), func(c Command) int {
		c.Dir, c.MakeDir = dir, true
		return z.begin(t, nil)(c)
	})
	if got.stdout != dir+"\n" {
		t.Errorf("%+v", got)
	}
}

// A spare can become any program, and the kernel says who it is.
func TestOtherProgram(t *testing.T) {
	z := newZygote(t)
	var isWarm bool
	var pid int
	s := script{}
	got := s.play(t, t.TempDir(), func(c Command) int {
		c.Args = []string{"sh", "-c", "echo $0 $$ $X; exit 7"}
		pid = z.begin(t, &isWarm)(c)
		return pid
	})
	if want := (outcome{fmt.Sprintf("sh %d 1\n", pid), "", "exit 7"}); got != want || isWarm {
		t.Errorf("%+v, want %+v, warm: %v", got, want, isWarm)
	}
	spare := z.fork(t)
	if spare.UID != uint32(os.Getuid()) || spare.GID != uint32(os.Getgid()) {
		t.Errorf("the spare is %d:%d", spare.UID, spare.GID)
	}
	if err := unix.Waitid(unix.P_PID, spare.PID, nil, unix.WNOWAIT|unix.WNOHANG|unix.WEXITED, nil); err != nil {
		t.Errorf("the spare is not a child of this process: %v", err)
	}
	unix.Close(spare.FD) // with which it ends
	if status := wait(t, spare.PID); status != "exit 0" {
		t.Errorf("a spare that is not needed: %s", status)
	}
}

// An interrupt that an earlier command has sent to everybody is not for the command that a spare becomes.
func TestInterruptedSpare(t *testing.T) {
	z := newZygote(t)
	for _, s := range []script{
		code("warm", "import signal; print(signal.sigpending())"),
		executed(code("executed", "import signal; print(signal.sigpending(), '\\d')")),
		{name: "stdin", stdin: "import signal; print(signal.sigpending())"},
	} {
		t.Run(s.name, func(t *testing.T) {
			spare := z.fork(t)
			defer unix.Close(spare.FD)
			if err := unix.Kill(spare.PID, unix.SIGINT); err != nil {
				t.Fatal(err)
			}
			got := s.play(t, t.TempDir(), func(c Command) int {
				if warm, err := spare.Run(c, patience); err != nil || warm == s.cold {
					t.Errorf("warm: %v, %v", warm, err)
				}
				return spare.PID
			})
			if got.status != "exit 0" || !strings.HasPrefix(got.stdout, "set()") {
				t.Errorf("%+v", got)
			}
		})
	}
}

// A program that is read from stdin and cannot go on to an interpreter does not run: no part of it does.
func TestNoPartOfAProgram(t *testing.T) {
	long := "print('begin \\d')\n" + strings.Repeat("# a program that a pipe does not hold\n", 5000) + "print('end')\n"
	t.Run("too long", func(t *testing.T) {
		s := script{stdin: long, fileSize: 1 << 16}
		want := outcome{"", fmt.Sprintf("boxd: the program on stdin has a warning or an error, and cannot be given to a new interpreter, which would report it: %d bytes: File too large; start it from a file\n", len(long)), "exit 127"}
		if got := s.play(t, t.TempDir(), newZygote(t).begin(t, nil)); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
	t.Run("no interpreter", func(t *testing.T) {
		dir := t.TempDir()
		path := filepath.Join(dir, "python3")
		if err := os.Symlink(interpreter(t), path); err != nil {
			t.Fatal(err)
		}
		s := script{stdin: long}
		control, err := load(t, append([]string{"PATH=" + dir}, baseEnv[1:]...))
		if err != nil {
			t.Fatal(err)
		}
		z := &warm{control: control}
		got := s.play(t, t.TempDir(), func(c Command) int {
			c.Env = append([]string{"PATH=" + dir}, baseEnv[1:]...)
			pid := z.begin(t, nil)(c)
			if err := os.Remove(path); err != nil {
				t.Error(err)
			}
			return pid
		})
		if want := (outcome{"", "boxd: cannot execute python3: No such file or directory\n", "exit 127"}); got != want {
			t.Errorf("%+v, want %+v", got, want)
		}
	})
}

// An interrupt that comes while a program from stdin is compiled ends it.
func TestInterruptedWhileCompiling(t *testing.T) {
	r, w := pipe(t)
	defer w.Close()
	reader, err := unix.Dup(int(r.Fd())) // play closes r
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(reader)
	s := script{open: map[int]func() (*os.File, error){0: func() (*os.File, error) { return r, nil }}}
	z := newZygote(t)
	got := s.play(t, t.TempDir(), func(c Command) int {
		pid := z.begin(t, nil)(c)
		program := strings.Repeat("x = [1, 2, 3]\n", 40_000) + "import time; time.sleep(5)\n"
		if _, err := w.WriteString(program); err != nil {
			t.Error(err)
		}
		w.Close()
		for n := 1; n > 0; { // until all of it has been read
			if n, err = unix.IoctlGetInt(reader, unix.TIOCINQ); err != nil {
				t.Fatal(err)
			}
		}
		for before, running := cpuTicks(t, pid); running; { // until it has computed since then, or does not
			now, still := cpuTicks(t, pid)
			running = still && now < before+2
		}
		if err := unix.Kill(pid, unix.SIGINT); err != nil {
			t.Error(err)
		}
		return pid
	})
	if got.status != "interrupt" {
		t.Errorf("%+v", got)
	}
}

// cpuTicks returns how long a process has computed, in ticks of the clock, and whether it does so now.
func cpuTicks(t *testing.T, pid int) (ticks int, running bool) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:])) // from the third: state
	ticks, err = strconv.Atoi(fields[11])
	if err != nil {
		t.Fatal(err)
	}
	return ticks, fields[0] == "R"
}
