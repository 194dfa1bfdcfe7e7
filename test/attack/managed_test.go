package attack

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/testutil"
)

// patience bounds what should take milliseconds.
const patience = time.Minute

// startService returns the client of a launcher service, which ends with the test.
func startService(t *testing.T) *native.Service {
	t.Helper()
	testutil.RequireRoot(t)
	_, initPath := testutil.BuildBinaries(t)
	dir := testutil.ReachableDir(t, "/run")
	socket, err := native.StartLauncher(t.Context(), native.LauncherOptions{InitPath: initPath, StateDir: dir, DataDir: dataDir(t)})
	if err != nil {
		t.Fatal(err)
	}
	s, err := native.Connect(t.Context(), native.ServiceOptions{Socket: socket})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := s.Stop(ctx, true); err != nil {
			t.Error(err)
		}
		awaitKeeper(t, dir)
	})
	return s
}

// awaitKeeper waits until no process uses a state directory.
func awaitKeeper(t *testing.T, dir string) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		if left, _ := filepath.Glob(filepath.Join(dir, "run-*")); len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the launcher on %q has not ended", dir)
		}
	}
}

func createLive(t *testing.T, s *native.Service, spec engine.Spec) engine.LiveBox {
	t.Helper()
	b, err := s.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return b
}

func launch(t *testing.T, b engine.LiveBox, m engine.Managed) engine.ManagedProcess {
	t.Helper()
	p, err := b.Launch(t.Context(), m)
	if err != nil {
		t.Fatalf("%q: %v", m.Args, err)
	}
	return p
}

// await waits for the end of a process.
func await(t *testing.T, p engine.ManagedProcess) engine.Result {
	t.Helper()
	select {
	case <-p.Done():
		return p.Result()
	case <-time.After(patience):
		t.Fatalf("%s has not ended after %v", p.Key(), patience)
		return engine.Result{}
	}
}

// readAll returns what an output still has.
func readAll(t *testing.T, o engine.Output) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var text strings.Builder
	buf := make([]byte, 64<<10)
	off, _ := o.Bounds()
	for {
		n, at, err := o.ReadAt(ctx, buf, off)
		text.Write(buf[:n])
		off = at + int64(n)
		if errors.Is(err, io.EOF) {
			return text.String()
		}
		if err != nil {
			t.Fatal(err)
		}
		o.Release(off)
	}
}

// TestManaged tries to get at what PID 1 keeps for a managed process, from beside
// it, as another user, and as the process itself.
func TestManaged(t *testing.T) {
	program := buildProbe(t)
	s := startService(t)
	for _, user := range []engine.User{{}, {UID: 1000, GID: 1000}} {
		b := createLive(t, s, engine.Spec{
			User:   user,
			Mounts: []engine.Mount{{Source: filepath.Dir(program), Target: probeTarget, ReadOnly: true}},
		})
		victim := launch(t, b, engine.Managed{Key: "victim", Args: []string{"sh", "-c", "echo before; cat"}})
		for _, name := range append(probes(t, program, "managed"), "fds", "spy-init", "getfd-init", "kill-init") {
			t.Run(fmt.Sprintf("user %d/%s", user.UID, name), func(t *testing.T) { wantBlocked(t, b, name, nil) })
		}
		pid := fmt.Sprintf("pid=%d", victim.Control().PID())
		for _, name := range probes(t, program, "stranger") {
			t.Run(fmt.Sprintf("user %d/%s", user.UID, name), func(t *testing.T) {
				try(t, b, name, []string{pid}, engine.Command{User: &engine.User{UID: 2000, GID: 2000}})
			})
		}
		for _, name := range []string{"fds", "cwd", "session", "kill-init", "ptrace-init", "vm-init", "getfd-init", "spy-init", "exe-init", "managed-rings", "managed-spy-init"} {
			for _, tty := range []*engine.WindowSize{nil, {Rows: 24, Cols: 80}} {
				if name == "session" && tty != nil {
					continue // it has a terminal of its own then
				}
				t.Run(fmt.Sprintf("user %d/itself/%s/tty %v", user.UID, name, tty != nil), func(t *testing.T) {
					p := launch(t, b, engine.Managed{Key: fmt.Sprintf("%s-%v", name, tty != nil), Args: []string{probeTarget + "/probe", name}, TTY: tty})
					r, out := await(t, p), readAll(t, p.Stdio().Stdout)
					if r.Verdict != engine.Exited || r.ExitCode != 0 || !strings.HasPrefix(out, "blocked: ") {
						t.Errorf("%s (%s, status %d)", strings.TrimSpace(out), r.Verdict, r.ExitCode)
					}
					if err := p.Forget(t.Context()); err != nil {
						t.Error(err)
					}
				})
			}
		}
		// It has noticed nothing.
		in := victim.Stdio().Stdin
		if err := errors.Join(in.Write(t.Context(), 0, []byte("after\n")), in.Close(t.Context())); err != nil {
			t.Error(err)
		}
		if r, out := await(t, victim), readAll(t, victim.Stdio().Stdout); r.ExitCode != 0 || out != "before\nafter\n" {
			t.Errorf("the victim ended with %+v and %q", r, out)
		}
	}
}

// TestManagedDisturbs: a process that misuses its own stdio harms only itself, and its end is always
// reported, even if there is no reader.
func TestManagedDisturbs(t *testing.T) {
	b := createLive(t, startService(t), engine.Spec{User: engine.User{UID: 1000, GID: 1000}})
	const history = 16 << 10
	const fill = `
import fcntl, os, sys
def fill(fd):
    os.set_blocking(fd, False)
    try:
        while True: os.write(fd, b"x" * 4096)
    except BlockingIOError: pass
def take(fd): # whatever the agent takes meanwhile, until its ring is full
    while True:
        fill(1)
        try: return os.read(fd, 1 << 20)
        except BlockingIOError: pass
`
	t.Run("at once", func(t *testing.T) {
		for _, c := range []struct {
			name, script string
			tty          bool
		}{
			{"fills", fill + "fill(1); fill(2); os._exit(7)", false},
			{"fills-enlarged", fill + "[fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, 1 << 20) for fd in (1, 2)]; fill(1); fill(2); os._exit(7)", false},
			{"fills-shrunk", fill + "fcntl.fcntl(1, fcntl.F_SETPIPE_SZ, 4096); fill(1); os._exit(7)", false},
			{"fills-terminal", fill + "fill(1); os._exit(7)", true},
			{"fills-stdin", fill + "fd = os.open('/dev/stdin', os.O_RDWR); fill(fd); os._exit(7)", false},
			{"takes-back", fill + "fd = os.open('/dev/stdout', os.O_RDWR | os.O_NONBLOCK); take(fd); fill(1); os._exit(7)", false},
			{"closes", "import os\nfor fd in range(3): os.close(fd)\nos._exit(7)", false},
			{"swaps", "import os\nos.dup2(0, 1); os.dup2(0, 2); os._exit(7)", false},
			{"splices", fill + "r, w = os.pipe(); fill(w); os.set_blocking(1, False); os.splice(r, 1, 1 << 16); os._exit(7)", false},
			{"leaves-children", "import os, time\nif os.fork(): os._exit(7)\nos.setsid()\nwhile True: os.write(1, b'x')", false},
			{"leaves-readers", "import os, time\nfd = os.open('/dev/stdout', os.O_RDWR)\nif os.fork(): os._exit(7)\nwhile True: os.read(fd, 1 << 20)", false},
			{"hangs-up", "import os, signal\nsignal.signal(signal.SIGHUP, signal.SIG_IGN); os.close(0); os.close(1); os.close(2); os._exit(7)", true},
		} {
			t.Run(c.name, func(t *testing.T) {
				t.Parallel() // some wait for output that nobody closes
				m := engine.Managed{Key: c.name, Args: []string{"python3", "-c", c.script}, History: history}
				if c.tty {
					m.TTY = &engine.WindowSize{Rows: 24, Cols: 80}
				}
				p := launch(t, b, m)
				if r := await(t, p); r.Verdict != engine.Exited || r.ExitCode != 7 {
					t.Errorf("%s, status %d, want status 7; stderr %q", r.Verdict, r.ExitCode, stderrOf(t, p))
				}
				oldest, end := p.Stdio().Stdout.Bounds()
				if end-oldest > history || int64(len(readAll(t, p.Stdio().Stdout))) > end-oldest {
					t.Errorf("kept %d to %d of a ring of %d", oldest, end, history)
				}
				if err := p.Stdio().Stdin.Write(t.Context(), p.Stdio().Stdin.Accepted(), []byte("late")); err == nil {
					t.Error("a process that has ended took input")
				}
				if err := p.Forget(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
	})
	if r, err := engine.Run(t.Context(), b, engine.Command{Args: []string{"true"}}); err != nil || r.ExitCode != 0 {
		t.Errorf("the box is not what it was: %+v, %v", r, err)
	}
}

func stderrOf(t *testing.T, p engine.ManagedProcess) string {
	t.Helper()
	if o := p.Stdio().Stderr; o != nil {
		return readAll(t, o)
	}
	return ""
}

// TestManagedMemory: if the box has no memory left, rings included, readers get exactly the output of
// the process, and can continue to read.
func TestManagedMemory(t *testing.T) {
	b := createLive(t, startService(t), engine.Spec{Limits: engine.Limits{Memory: 64 << 20}})
	p := launch(t, b, engine.Managed{
		Key: "talks", Args: []string{"sh", "-c", "while :; do echo 0123456789abcdef; done"}, History: engine.MaxHistory / 4, DropOldest: true,
	})
	for range 3 {
		r, err := engine.Run(t.Context(), b, engine.Command{Args: []string{"python3", "-c", "x = []\nwhile True: x.append(bytes([1]) * (1 << 20))"}, Timeout: patience})
		if err != nil || r.Verdict != engine.OOM && r.ExitCode == 0 {
			t.Errorf("%+v, %v", r, err)
		}
	}
	out, buf := p.Stdio().Stdout, make([]byte, 64<<10)
	oldest, _ := out.Bounds()
	n, at, err := out.ReadAt(t.Context(), buf, oldest)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Error(err)
	}
	const line = "0123456789abcdef\n"
	for i, c := range buf[:n] {
		if want := line[(at+int64(i))%int64(len(line))]; c != want {
			t.Fatalf("byte %d is %q, want %q", at+int64(i), c, want)
		}
	}
	if err := p.Control().Signal(syscall.SIGKILL); err != nil {
		t.Log(err) // it may have been killed for memory
	}
	if r := await(t, p); r.ExitCode >= 0 {
		t.Errorf("%+v, want a death", r)
	}
}
