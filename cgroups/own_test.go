package cgroups

import (
	"maps"
	"testing"
)

func TestParseOwnCgroups(t *testing.T) {
	got := parseOwnCgroups("4:memory:/a:b\n1:cpu,cpuacct:/\n2:name=systemd:/x\n0::/user\nbroken\n")
	want := map[string]string{"memory": "/a:b", "cpu": "/", "cpuacct": "/", "name=systemd": "/x", "": "/user"}
	if !maps.Equal(got, want) {
		t.Errorf("%v", got)
	}
}

func TestRelativeTo(t *testing.T) {
	for _, c := range []struct{ root, path, want string }{
		{"/", "/", "."},
		{"/", "/a/b", "a/b"},
		{"/docker/x", "/docker/x", "."},
		{"/docker/x", "/docker/x/y", "y"},
		{"/docker/x", "/other", "."},
		{"/", "/../escape", "escape"},
		{"/", "", "."},
	} {
		if got := relativeTo(c.root, c.path); got != c.want {
			t.Errorf("%q in %q: %q, want %q", c.path, c.root, got, c.want)
		}
	}
}
