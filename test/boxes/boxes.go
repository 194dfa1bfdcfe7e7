// Package boxes starts the native engine for tests that only want boxes. Tests of the engine
// itself choose its options and its state directory.
package boxes

import (
	"testing"

	"github.com/boxd/boxd/engine/native"
	"github.com/boxd/boxd/internal/testutil"
)

// Start starts an engine, with the boxd-init under test. It ends with the test, which fails
// if the engine's end does.
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
