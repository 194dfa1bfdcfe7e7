package cgroups

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestParseMountinfo(t *testing.T) {
	const text = `23 1 254:0 / / rw,relatime shared:1 - ext4 /dev/root rw
31 23 0:28 / /sys/fs/cgroup rw shared:2 master:3 - tmpfs tmpfs rw,mode=755
32 31 0:29 /docker/x /sys/fs/cgroup/cpu\040acct rw - cgroup cgroup rw,cpu,cpuacct
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate,pids_localevents
`
	got, err := parseMountinfo(strings.NewReader(text))
	check(t, err)
	if len(got) != 2 {
		t.Fatalf("%d cgroup mounts", len(got))
	}
	if m := got[0]; m.root != "/docker/x" || m.path != "/sys/fs/cgroup/cpu acct" || !slices.Equal(m.options, []string{"rw", "cpu", "cpuacct"}) {
		t.Errorf("v1: %+v", m)
	}
	if m := got[1]; m.fstype != "cgroup2" || !slices.Contains(m.options, "pids_localevents") {
		t.Errorf("v2: %+v", m)
	}
	for _, bad := range []string{"x", "1 2 3 4 5 6", "1 2 0:1 / /p rw -", "1 2 0:1 / /p rw - cgroup"} {
		if _, err := parseMountinfo(strings.NewReader(bad)); err == nil {
			t.Errorf("%q parsed", bad)
		}
	}
}

func TestUnescape(t *testing.T) {
	for in, want := range map[string]string{
		"/plain":        "/plain",
		`/a\040b\011`:   "/a b\t",
		`/back\134`:     `/back\`,
		`/end\04`:       `/end\04`,
		`/not\999octal`: `/not\999octal`,
	} {
		if got := unescape(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

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
