package daemon

import (
	"strings"
	"testing"
)

func TestCheckState(t *testing.T) {
	for _, path := range []string{"/run", "/run/boxd", "/etc/boxd", "/var/run/x", "/root/state"} {
		if err := checkState(path); err == nil || !strings.Contains(err.Error(), "nothing there is ever mounted") {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range []string{"/var/lib/boxd", "/runner", "/srv/run", "/tmp/etc/x"} {
		if err := checkState(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestNested(t *testing.T) {
	for _, c := range []struct {
		state, runtime string
		nested         bool
	}{
		{"/srv/boxd", "/srv/boxd/run", true}, {"/var/lib/boxd", "/run/boxd", false}, {"/srv/boxd", "/srv/boxd-run", false}, {"/srv/boxd", "/srv", false},
	} {
		if got := (dirs{state: c.state, runtime: c.runtime}).nested(); got != c.nested {
			t.Errorf("%s, %s: %v", c.state, c.runtime, got)
		}
	}
}
