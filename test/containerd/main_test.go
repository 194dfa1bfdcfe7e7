package containerd

import (
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.MainReaping(m) }
