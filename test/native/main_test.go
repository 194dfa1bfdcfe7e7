package native

import (
	"context"
	"errors"
	"os"
	"sync"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

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
