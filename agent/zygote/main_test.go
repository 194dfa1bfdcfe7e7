package zygote

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) {
	// As PID 1 of a box does, this process gets the spares as children.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	testutil.MainUnprivileged(m)
}
