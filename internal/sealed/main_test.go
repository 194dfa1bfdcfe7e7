package sealed

import (
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }
