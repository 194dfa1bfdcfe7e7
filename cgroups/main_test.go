package cgroups

import (
	"os"
	"runtime"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// Nothing else gets the main thread: a spawner that ended on it would stay in its
// cgroups, because the Go runtime cannot end that thread.
func init() { runtime.LockOSThread() }

func TestMain(m *testing.M) {
	if role := os.Getenv("CGROUPS_TEST_ROLE"); role != "" {
		os.Exit(play(role, os.Args[1:]))
	}
	testutil.Main(m)
}
