package cgroups

import (
	"os"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) {
	if role := os.Getenv("CGROUPS_TEST_ROLE"); role != "" {
		os.Exit(play(role, os.Args[1:]))
	}
	testutil.Main(m)
}
