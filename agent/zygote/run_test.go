package zygote

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/testutil"
)

const patience = 20 * time.Second

// searchPath is where the interpreter is looked for. ZYGOTE_TEST_PATH names a directory with another one.
var searchPath = strings.TrimPrefix(os.Getenv("ZYGOTE_TEST_PATH")+":/usr/local/bin:/usr/bin:/bin", ":")

var baseEnv = []string{"PATH=" + searchPath, "HOME=/nonexistent", "LANG=C.UTF-8", "X=1"}

// interpreter skips the test if there is none.
func interpreter(t testing.TB) string {
	t.Helper()
	for dir := range strings.SplitSeq(searchPath, ":") {
		if path := filepath.Join(dir, "python3"); unix.Access(path, unix.X_OK) == nil {
			return path
		}
	}
	return testutil.RequireProgram(t, "python3")
}

// load starts a zygote. It ends with the test.
func load(t testing.TB, env []string, preload ...string) (control int, err error) {
	t.Helper()
	return loadCommand(t, []string{"python3"}, env, preload...)
}

func loadCommand(t testing.TB, command, env []string, preload ...string) (control int, err error) {
	t.Helper()
	path := interpreter(t)
	ours, theirs, err := Pair()
	if err != nil {
		t.Fatal(err)
	}
	end := os.NewFile(uintptr(theirs), "control")
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	// The shell closes descriptor 3, which ExtraFiles cannot leave out.
	shell := []string{"-c", `exec "$@" 3<&-`, "sh", path}
	cmd := exec.Command("/bin/sh", append(shell, Args(command)[1:]...)...)
	cmd.Env = env
	cmd.ExtraFiles = []*os.File{null, end}
	if os.Getenv("ZYGOTE_TEST_STDERR") != "" {
		cmd.Stderr = os.Stderr
	}
	err = cmd.Start()
	end.Close()
	if err != nil {
		unix.Close(ours)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		unix.Close(ours)
		cmd.Wait()
	})
	return ours, Load(ours, command, preload, patience)
}

// warm runs commands by spares of one zygote.
type warm struct {
	mutex   sync.Mutex
	control int // guarded by mutex
}

func newZygote(t testing.TB, preload ...string) *warm {
	t.Helper()
	control, err := load(t, baseEnv, preload...)
	if err != nil {
		t.Fatal(err)
	}
	return &warm{control: control}
}

// fork returns a spare, whose socket the caller owns.
func (z *warm) fork(t testing.TB) *Spare {
	t.Helper()
	z.mutex.Lock()
	defer z.mutex.Unlock()
	spare, err := Fork(z.control, patience)
	if err != nil {
		t.Fatal(err)
	}
	return spare
}

// begin gives a spare a command, and sets warm, if it is not nil, to how it was started.
func (z *warm) begin(t testing.TB, warm *bool) func(Command) (pid int) {
	return func(command Command) int {
		t.Helper()
		spare := z.fork(t)
		defer unix.Close(spare.FD)
		started, err := spare.Run(command, patience)
		if err != nil {
			unix.Kill(spare.PID, unix.SIGKILL)
			wait(t, spare.PID)
			t.Fatal(err)
		}
		if warm != nil {
			*warm = started
		}
		return spare.PID
	}
}

// wait returns how a process has ended.
func wait(t testing.TB, pid int) string {
	t.Helper()
	var status unix.WaitStatus
	for {
		_, err := unix.Wait4(pid, &status, 0, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if status.Signaled() {
			return status.Signal().String()
		}
		return fmt.Sprint("exit ", status.ExitStatus())
	}
}

// A script is a command of python3, and what it finds.
type script struct {
	name  string
	args  []string
	stdin string
	files map[string]string // in the current directory
	env   []string          // more variables
	cold  bool              // a spare executes the interpreter
	// merged has stdout and stderr on one pipe, so that their order counts.
	merged bool
	// open replaces a descriptor of stdio.
	open map[int]func() (*os.File, error)
	// signal is sent to the process when its stdout begins with "ready\n".
	signal unix.Signal
	// fileSize, unless it is 0, is the process's RLIMIT_FSIZE in bytes before stdin has anything.
	fileSize uint64
}

// An outcome is everything that a command shows.
type outcome struct{ stdout, stderr, status string }

// difference says in which lines o is not as a new interpreter's outcome.
func (o outcome) difference(want outcome) string {
	var b strings.Builder
	if o.status != want.status {
		fmt.Fprintf(&b, "%s, a new interpreter: %s\n", o.status, want.status)
	}
	for _, stream := range []struct{ name, got, want string }{{"stdout", o.stdout, want.stdout}, {"stderr", o.stderr, want.stderr}} {
		got, want := strings.Split(stream.got, "\n"), strings.Split(stream.want, "\n")
		for i, shown := 0, 0; i < max(len(got), len(want)) && shown < 10; i++ {
			if g, w := line(got, i), line(want, i); g != w {
				fmt.Fprintf(&b, "%s %d: %.4000s\n  a new interpreter: %.4000s\n", stream.name, i+1, g, w)
				shown++
			}
		}
	}
	return b.String()
}

func line(lines []string, i int) string {
	if i < len(lines) {
		return fmt.Sprintf("%q", lines[i])
	}
	return "nothing"
}

// addresses are the only part of an outcome that is not the same in two new interpreters.
var addresses = regexp.MustCompile(`0x[0-9a-f]{6,}|\bstarted \d{6,}`)

// play runs s in dir, which it makes anew, by begin.
func (s *script) play(t testing.TB, dir string, begin func(Command) (pid int)) outcome {
	t.Helper()
	if err := errors.Join(os.RemoveAll(dir), os.MkdirAll(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	for name, content := range s.files {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o755)); err != nil {
			t.Fatal(err)
		}
	}
	stdinR, stdinW := pipe(t)
	outR, outW := pipe(t)
	errR, errW := pipe(t)
	stdio := [3]*os.File{stdinR, outW, errW}
	if s.merged {
		stdio[2] = outW
	}
	for fd, open := range s.open {
		f, err := open()
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		stdio[fd] = f
	}
	command := Command{
		Args: append([]string{"python3"}, s.args...), Env: append(append([]string(nil), baseEnv...), s.env...), Dir: dir,
		Stdio: [3]int{int(stdio[0].Fd()), int(stdio[1].Fd()), int(stdio[2].Fd())},
	}
	pid := begin(command)
	stdinR.Close()
	outW.Close()
	errW.Close()
	if s.fileSize != 0 {
		if err := unix.Prlimit(pid, unix.RLIMIT_FSIZE, &unix.Rlimit{Cur: s.fileSize, Max: s.fileSize}, nil); err != nil {
			t.Error(err)
		}
	}
	ready := make(chan struct{})
	stdout, stderr := collect(outR, ready), collect(errR, make(chan struct{}))
	if s.signal != 0 {
		<-ready
		if err := unix.Kill(pid, s.signal); err != nil {
			t.Error(err)
		}
	}
	fed := make(chan struct{})
	go func() {
		defer close(fed)
		defer stdinW.Close()
		stdinW.WriteString(s.stdin)
	}()
	status := wait(t, pid)
	<-fed
	return outcome{addresses.ReplaceAllString(<-stdout, "ADDRESS"), addresses.ReplaceAllString(<-stderr, "ADDRESS"), status}
}

func pipe(t testing.TB) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

// collect reads r to its end, and closes ready when the text begins with "ready\n", or ends.
func collect(r *os.File, ready chan<- struct{}) <-chan string {
	done := make(chan string, 1)
	go func() {
		defer r.Close()
		var all bytes.Buffer
		chunk := make([]byte, 1<<16)
		told := false
		for {
			n, err := r.Read(chunk)
			all.Write(chunk[:n])
			if !told && (err != nil || strings.HasPrefix(all.String(), "ready\n")) {
				told = true
				close(ready)
			}
			if err != nil {
				done <- all.String()
				return
			}
		}
	}()
	return done
}

// newInterpreter begins a command as an agent does without a zygote.
func newInterpreter(t testing.TB) func(Command) int {
	path := interpreter(t)
	return func(c Command) int { return forkExec(t, path, c) }
}

// compare runs s by a new interpreter and by a spare, and fails unless everything is the same.
func (s *script) compare(t *testing.T, z *warm) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "dir")
	want := s.play(t, dir, newInterpreter(t))
	var warm bool
	got := s.play(t, dir, z.begin(t, &warm))
	if got != want {
		t.Error(got.difference(want))
	}
	if warm == s.cold {
		t.Errorf("the spare was warm: %v", warm)
	}
}
