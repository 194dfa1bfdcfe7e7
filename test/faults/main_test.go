package faults

import (
	"os"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// roleVariable makes the test binary play a program that the tests need.
const roleVariable = "BOXD_FAULTS_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) == "caller" {
		os.Exit(caller())
	}
	// Whatever loses its parent becomes a child of this process: nothing that a
	// test starts can get out of sight.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	testutil.Main(m)
}

// binaries returns the programs under test.
func binaries(t testing.TB) (boxd, boxdInit string) {
	t.Helper()
	testutil.RequireRoot(t)
	return testutil.BuildBinaries(t)
}

// newState makes a state directory of the test's own. When the test ends, it has
// to be as empty as it was at first.
func newState(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/run", "boxd-faults-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, name := range leftInState(t, dir) {
			t.Errorf("left in the state directory: %s", name)
		}
		os.RemoveAll(dir)
	})
	return dir
}
