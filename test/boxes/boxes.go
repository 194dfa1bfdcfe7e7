// Package boxes starts the native engine for tests that only want boxes. Tests of the engine itself
// choose its options and its state directory.
package boxes

import (
	"context"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/testutil"
)

// Start starts an engine with the boxd-init under test. The test closes it, and fails if that fails.
func Start(t *testing.T) *native.Engine {
	t.Helper()
	_, initPath := testutil.BuildBinaries(t)
	e, err := native.Start(t.Context(), native.Options{InitPath: initPath})
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

// Create creates a box. The caller calls remove, which fails the test if the box cannot be removed.
func Create(t *testing.T, e engine.Engine, spec engine.Spec) (b engine.Box, remove func()) {
	t.Helper()
	b, err := e.Create(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	return b, func() {
		if err := b.Remove(context.Background()); err != nil {
			t.Error(err)
		}
	}
}
