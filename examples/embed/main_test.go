package main

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// TestExample runs the program as its users do: built with plain "go build", without the flags and the
// stamp of the Makefile. If there is no Go, as in the virtual machine, the test runs its own copy.
func TestExample(t *testing.T) {
	testutil.RequireRoot(t)
	_, initPath := testutil.BuildBinaries(t)
	goTool, err := exec.LookPath("go")
	if err != nil {
		if err := run(t.Context(), initPath); err != nil {
			t.Fatal(err)
		}
		return
	}
	program := filepath.Join(t.TempDir(), "embed")
	if out, err := exec.Command(goTool, "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(program, initPath).CombinedOutput()
	const want = "exited 0 \n6 times 7 is 42\nexited 0 \noom 137 64 MiB\n"
	if err != nil || string(out) != want {
		t.Errorf("%v, %q, want %q", err, out, want)
	}
}
