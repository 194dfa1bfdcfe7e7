package faults

import (
	"os"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// roleVariable makes the test binary play a program that the tests need.
const roleVariable = "BOXD_FAULTS_ROLE"

func TestMain(m *testing.M) {
	if os.Getenv(roleVariable) == "caller" {
		os.Exit(caller())
	}
	testutil.MainReaping(m)
}

// binaries returns the programs under test.
func binaries(t testing.TB) (boxd, boxdInit string) {
	t.Helper()
	testutil.RequireRoot(t)
	return testutil.BuildBinaries(t)
}

// newState creates a state directory. At the end of the test it must be as empty as at the beginning.
func newState(t testing.TB) string {
	t.Helper()
	dir := testutil.ReachableDir(t, "/run")
	t.Cleanup(func() {
		for _, name := range leftInState(t, dir) {
			t.Errorf("left in the state directory: %s", name)
		}
	})
	return dir
}
