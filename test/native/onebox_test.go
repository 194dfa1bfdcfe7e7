package native

import (
	"context"
	"os"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/testutil"
)

// TestOneBox: an engine for one box can make another one, and leaves nothing when it is closed.
func TestOneBox(t *testing.T) {
	testutil.RequireRoot(t)
	_, initPath := testutil.BuildBinaries(t)
	for _, removed := range []bool{true, false} {
		dir := stateDir(t)
		before := descendants(t)
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		e, err := native.Start(ctx, native.Options{InitPath: initPath, StateDir: dir, OneBox: true})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			b, err := e.Create(ctx, engine.Spec{})
			if err != nil {
				t.Fatal(err)
			}
			if r, err := engine.Run(ctx, b, engine.Command{Args: []string{"true"}}); err != nil || r.ExitCode != 0 {
				t.Errorf("%+v, %v", r, err)
			}
			if removed {
				remove(t, b)
			}
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		left := func() (names []string) {
			entries, err := os.ReadDir(dir)
			if err != nil {
				t.Fatal(err)
			}
			for _, entry := range entries {
				if n := entry.Name(); n != "lock" && n != "ids" {
					names = append(names, n)
				}
			}
			return names
		}
		running := func() (pids []string) {
			for pid := range descendants(t) {
				if !before[pid] {
					pids = append(pids, pid)
				}
			}
			return pids
		}
		if names, pids := left(), running(); len(names)+len(pids) > 0 {
			t.Errorf("removed %v: left in the state directory: %q, processes: %q", removed, names, pids)
		}
	}
}
