package mounts

import (
	"os"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) {
	if os.Getenv(boxRole) != "" {
		playBox()
		os.Exit(0)
	}
	testutil.Main(m)
}
