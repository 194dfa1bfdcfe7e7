package native

import (
	"os"
	"testing"
)

// wantHostUntouched looks for what the writable root's test does.
func wantHostUntouched(t *testing.T) {
	t.Helper()
	if _, err := os.Stat("/usr/bin/boxd-test-made"); err == nil {
		t.Error("a box wrote to /usr/bin of the host")
	}
	if _, err := os.Stat("/usr/bin/env"); err != nil {
		t.Error("a box removed /usr/bin/env of the host")
	}
}
