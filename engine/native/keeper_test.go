package native

import (
	"strings"
	"testing"
)

// TestIsOurs: the number of a keeper may by now belong to the keeper of another directory.
func TestIsOurs(t *testing.T) {
	for args, want := range map[string]bool{
		"boxd-init keeper --state-dir /run/x --client 0:0":                        true,
		"boxd-init keeper --client 0:0 --state-dir /run/x/":                       true,
		"boxd-init launcher --service --state-dir /run/x --client 0:0 --prepared": true,
		"boxd-init keeper --state-dir /run/y --client 0:0":                        false,
		"boxd-init launcher --state-dir /run/x":                                   false, // that of one client
		"boxd-init keeper --state-dir":                                            false,
		"boxd-init keeper":                                                        false,
		"sh keeper --state-dir /run/x":                                            false,
		"":                                                                        false,
	} {
		if isOurs(strings.Fields(args), "/run/x") != want {
			t.Errorf("%q: want %v", args, want)
		}
	}
}
