package ui

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// The files that are committed are what the sources make, byte for byte, and the sources agree with the types of the
// API's document.
func TestBuild(t *testing.T) {
	built := filepath.Join(t.TempDir(), "dist")
	program(t, "../../ui", "build.mjs", built)
	const committed = "../../ui/dist"
	names, err := os.ReadDir(built)
	if err != nil {
		t.Fatal(err)
	}
	there, err := os.ReadDir(committed)
	if err != nil || len(there) != len(names) || len(names) < 5 {
		t.Errorf("%s has %d files, the sources make %d: npm run build, %v", committed, len(there), len(names), err)
	}
	for _, e := range names {
		want, err := os.ReadFile(filepath.Join(built, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(filepath.Join(committed, e.Name())); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s/%s is not what the sources make: npm ci && npm run build in ui, %v", committed, e.Name(), err)
		}
	}
}

func TestTypes(t *testing.T) {
	testutil.Long(t)
	program(t, "../../ui", "node_modules/openapi-typescript/bin/cli.js", "../docs/openapi.json", "-o", "src/schema.d.ts")
	program(t, "../../ui", "node_modules/typescript/bin/tsc", "--noEmit")
}
