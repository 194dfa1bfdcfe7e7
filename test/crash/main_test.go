package crash

import (
	"os"
	"strconv"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) {
	// Whoever loses its parent becomes a child of this process, so that nothing gets
	// out of its sight, and is reaped at the end.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	testutil.Main(m)
}

// number reads a variable of the environment that changes a test.
func number(t *testing.T, variable string, fallback int64) int64 {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return fallback
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q: %v", variable, text, err)
	}
	return n
}
