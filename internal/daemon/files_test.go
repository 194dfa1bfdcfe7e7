package daemon

import (
	"strings"
	"testing"

	"github.com/boxd/boxd/config"
)

// TestFilesWarning: if the limit of open files is too small for the configured limits, a warning says
// what to do.
func TestFilesWarning(t *testing.T) {
	c := config.Default()
	c.Network = config.NetworkProxy
	c.Policy.Limits.Sessions, c.Policy.Limits.Processes = 10_000, 10_000
	need := filesNeeded(c)
	if need < 270_000 || need > wantedFiles {
		t.Errorf("10,000 sessions with a process each need %d descriptors", need)
	}
	if got := filesWarning(need, c); got != "" {
		t.Errorf("enough, and yet %q", got)
	}
	if got := filesWarning(need-1, c); !strings.Contains(got, "limits.sessions") || !strings.Contains(got, "LimitNOFILE") {
		t.Errorf("too few: %q", got)
	}
	if got := filesWarning(20_000, c); !strings.Contains(got, "at most 5000 for connections of boxes") {
		t.Errorf("too few: %q", got)
	}
	c.Network = config.NetworkOff
	if got := filesWarning(20_000, c); !strings.Contains(got, "LimitNOFILE") || strings.Contains(got, "boxes") {
		t.Errorf("too few, without a network: %q", got)
	}
	c.Policy.Limits.Sessions = -1 // no limit: nothing is enough
	if filesNeeded(c) != 0 {
		t.Error("a need of what has no limit")
	}
}
