package native

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// patience bounds every step that should take milliseconds, so that a hang is a
// failure with a name. It never decides between right and wrong.
var patience = func() time.Duration {
	if os.Getenv("BOXD_TEST_VM") != "" {
		return 5 * time.Minute
	}
	return time.Minute
}()

// start runs an engine with a state directory of its own, which must be as good
// as empty when the engine has ended.
func start(t testing.TB) *native.Engine {
	t.Helper()
	return startIn(t, stateDir(t))
}

func startIn(t testing.TB, dir string) *native.Engine {
	t.Helper()
	testutil.RequireRoot(t)
	_, initPath := testutil.BuildBinaries(t)
	e, err := startWith(t, initPath, dir)
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

func startWith(t testing.TB, initPath, dir string) (*native.Engine, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return native.Start(ctx, native.Options{InitPath: initPath, StateDir: dir})
}

// stateDir creates a state directory. PID 1 of a box passes through it.
func stateDir(t testing.TB) string {
	t.Helper()
	testutil.RequireRoot(t)
	dir := testutil.ReachableDir(t, "/run")
	t.Cleanup(func() { wantCleanState(t, dir) })
	return dir
}

// wantCleanState checks that an engine left only what the next one uses again.
func wantCleanState(t testing.TB, dir string) {
	t.Helper()
	if err := leftIn(dir); err != nil {
		t.Error(err)
	}
}

// leftIn returns an error that names what is left in the state directory.
func leftIn(dir string) error {
	var left []error
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		switch rel, _ := filepath.Rel(dir, path); rel {
		case ".", "lock", "ids", "spare":
		default:
			left = append(left, fmt.Errorf("left in the state directory: %q", rel))
		}
		return err
	})
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		left = append(left, err)
	}
	return errors.Join(left...)
}

// create makes a box that is removed with the test.
func create(t testing.TB, e engine.Engine, spec engine.Spec) engine.Box {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	b, err := e.Create(ctx, spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, b) })
	return b
}

func remove(t testing.TB, b engine.Box) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := b.Remove(ctx); err != nil {
		t.Error(err)
	}
}

// newBox is create in an engine of its own; with -short in one that all tests share, since the start
// of a launcher takes an emulated processor seconds.
func newBox(t testing.TB, spec engine.Spec) engine.Box {
	t.Helper()
	if !testing.Short() {
		return create(t, start(t), spec)
	}
	testutil.RequireRoot(t)
	_, initPath := testutil.BuildBinaries(t)
	e, err := shared(initPath)
	if err != nil {
		t.Fatal(err)
	}
	return create(t, e, spec)
}

var (
	sharedOnce sync.Once
	sharedBy   engine.Engine
	errShared  error
)

// shared returns the engine that lives until the tests have ended.
func shared(initPath string) (engine.Engine, error) {
	sharedOnce.Do(func() {
		var dir string
		if dir, errShared = os.MkdirTemp("/run", "boxd-test-"); errShared != nil {
			return
		}
		testutil.AfterTests(func() error { return os.RemoveAll(dir) })
		if errShared = os.Chmod(dir, 0o711); errShared != nil {
			return
		}
		var e *native.Engine
		if e, errShared = native.Start(context.Background(), native.Options{InitPath: initPath, StateDir: dir}); errShared == nil {
			sharedBy = e
			testutil.AfterTests(func() error { return errors.Join(e.Close(), leftIn(dir)) })
		}
	})
	return sharedBy, errShared
}

// outcome is a result with the output.
type outcome struct {
	engine.Result
	stdout, stderr string
}

// run runs a command and keeps its output, except where c says where it goes.
func run(t testing.TB, b engine.Box, c engine.Command) outcome {
	t.Helper()
	o, err := tryRun(t, b, c)
	if err != nil {
		t.Fatalf("%q: %v", c.Args, err)
	}
	return o
}

func tryRun(t testing.TB, b engine.Box, c engine.Command) (outcome, error) {
	t.Helper()
	var stdout, stderr strings.Builder
	if c.Stdout == nil {
		c.Stdout = &stdout
	}
	if c.Stderr == nil && c.TTY == nil {
		c.Stderr = &stderr
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := engine.Run(ctx, b, c)
	if err == nil && r.Verdict == engine.Canceled {
		t.Fatalf("%q: still running after %v; stdout %q, stderr %q", c.Args, patience, tail(stdout.String()), tail(stderr.String()))
	}
	return outcome{r, stdout.String(), stderr.String()}, err
}

// tail is the end of an output that may be long.
func tail(s string) string {
	if len(s) > 500 {
		return "…" + s[len(s)-500:]
	}
	return s
}

// shell is a command for sh.
func shell(script string) engine.Command {
	return engine.Command{Args: []string{"sh", "-c", script}}
}

// python is a command for python3, with its arguments in sys.argv.
func python(script string, args ...string) engine.Command {
	return engine.Command{Args: append([]string{"python3", "-c", script}, args...)}
}

// want checks how a command ended; status is the status in a shell.
func want(t testing.TB, o outcome, verdict engine.Verdict, status int) {
	t.Helper()
	if o.Verdict != verdict || o.Status() != status {
		t.Errorf("%s, status %d (limit %q), want %s, status %d; stdout %q, stderr %q",
			o.Verdict, o.Status(), o.Limit, verdict, status, tail(o.stdout), tail(o.stderr))
	}
}

// wantOutput runs a script that must succeed and print exactly output.
func wantOutput(t testing.TB, b engine.Box, script, output string) {
	t.Helper()
	o := run(t, b, shell(script))
	want(t, o, engine.Exited, 0)
	if o.stdout != output {
		t.Errorf("%s: printed %q, want %q", script, tail(o.stdout), output)
	}
}

// begin starts a command that ends with the test at the latest.
func begin(t testing.TB, b engine.Box, c engine.Command) engine.Process {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	p, err := b.Start(ctx, c)
	if err != nil {
		cancel()
		t.Fatalf("%q: %v", c.Args, err)
	}
	t.Cleanup(cancel)
	return p
}

// wait is Process.Wait with an end.
func wait(t testing.TB, p engine.Process) engine.Result {
	t.Helper()
	done := make(chan struct{})
	var r engine.Result
	var err error
	go func() {
		defer close(done)
		r, err = p.Wait()
	}()
	select {
	case <-done:
	case <-time.After(patience):
		t.Fatalf("command has not ended after %v", patience)
	}
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// figure is a figure of a receipt that every host of today must have.
func figure[T any](t testing.TB, name string, v *T) T {
	t.Helper()
	if v == nil {
		t.Fatalf("receipt: %s was not measured", name)
	}
	return *v
}

// workspace makes a directory on the host that belongs to uid and gid, and the
// mount of it at /workspace.
func workspace(t testing.TB, uid, gid int) (dir string, m engine.Mount) {
	t.Helper()
	dir = t.TempDir()
	if err := errors.Join(os.Chown(dir, uid, gid), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir, engine.Mount{Source: dir, Target: engine.WorkspaceTarget}
}
