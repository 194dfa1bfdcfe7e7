package native_test

import (
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// The Examples use the boxd-init binary and a state directory.
var initPath, stateDir string

func TestMain(m *testing.M) { testutil.MainWithExamples(m, setUp) }

func setUp(_, boxdInit, dir string) (tearDown func() error, err error) {
	initPath, stateDir = boxdInit, dir
	return func() error { return nil }, nil
}
