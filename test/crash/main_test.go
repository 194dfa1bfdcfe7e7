package crash

import (
	"os"
	"strconv"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.MainReaping(m) }

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
