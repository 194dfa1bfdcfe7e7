package containerd

import (
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// TestCurrent runs the tests of this package that need a containerd with a current one as well.
func TestCurrent(t *testing.T) {
	current = testutil.CurrentContainerd(t)
	t.Cleanup(func() { current = "" })
	t.Run("Container", TestContainer)
	t.Run("Box", TestBox)
	t.Run("Hanging", TestHanging)
	t.Run("Helper", TestHelper)
	t.Run("Dead", TestDead)
	t.Run("DeadShim", TestDeadShim)
	t.Run("KilledInBirth", TestKilledInBirth)
	t.Run("KilledLauncher", TestKilledLauncher)
	t.Run("SessionsSurvive", TestSessionsSurvive)
}
