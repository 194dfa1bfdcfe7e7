package containerd

import (
	"context"
	"os"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
)

func start(t *testing.T, d *Daemon) *native.Engine {
	t.Helper()
	_, init := testutil.BuildBinaries(t)
	e, err := native.Start(t.Context(), native.Options{InitPath: init, StateDir: testutil.ReachableDir(t, ""), Runtimes: native.Runtimes{
		Containerd: testutil.BuildContainerd(t), ContainerdAddress: d.Address,
	}})
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

func create(t *testing.T, e *native.Engine, s engine.Spec) engine.Box {
	t.Helper()
	s.Engine, s.Isolation = spec.EngineContainerd, spec.IsolationNamespaces
	b, err := e.Create(t.Context(), s)
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

func TestBox(t *testing.T) {
	d := Start(t)
	e := start(t, d)
	list, err := e.Engines(t.Context())
	t.Logf("%+v, %v", list, err)
	b := create(t, e, engine.Spec{})
	r, err := engine.Run(t.Context(), b, engine.Command{Args: []string{"/bin/sh", "-c", "id -u; echo hello"}, Stdout: os.Stdout, Stderr: os.Stderr})
	t.Logf("%+v, %v", r, err)
	t.Log(d.List())
}
