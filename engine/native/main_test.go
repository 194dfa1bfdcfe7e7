package native_test

import (
	"os"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// The Examples use the boxd-init binary and a state directory.
var initPath, stateDir string

func TestMain(m *testing.M) { testutil.MainWithExamples(m, setUp) }

func setUp(_, boxdInit string) (tearDown func() error, err error) {
	initPath = boxdInit
	if stateDir, err = os.MkdirTemp("/run", "boxd-test-native-"); err != nil {
		return nil, err
	}
	// PID 1 of a box passes through it.
	return func() error { return os.RemoveAll(stateDir) }, os.Chmod(stateDir, 0o711)
}
