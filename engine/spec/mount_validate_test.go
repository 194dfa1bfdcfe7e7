package spec

import (
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func TestMountValidate(t *testing.T) {
	long := "/" + strings.Repeat("a", 255)
	for _, c := range []struct{ source, target, want string }{
		{"/a", "/b", ""},
		{"/", "/b", ""}, // Open refuses it by the directory that it opens, not by its text
		{"/a", "/etc/app.conf", ""},
		{"/a", "/devices", ""},
		{"/a", "/etcetera", ""},
		{"/a:b", "/c:d", ""},
		{long, long, ""},
		{"", "/b", "must not be empty"},
		{"/a", "", "must not be empty"},
		{"a/b", "/b", "must be an absolute path"},
		{"~/b", "/b", "must be an absolute path"},
		{"/a", "b", "must be an absolute path"},
		{"/a\x00b", "/b", "control characters"},
		{"/a", "/b\x1b[2J", "control characters"},
		{"/a", "/b\x7f", "control characters"},
		{"/a", "/b/..", `must not contain ".."`},
		{"/a", "/../b", `must not contain ".."`},
		{"/a", "/", "root of the box"},
		{"/a", "/.", "root of the box"},
		{"/a", "/b/", `must be written as "/b"`},
		{"/a", "//b", `must be written as "/b"`},
		{"/a", "/b/./c", `must be written as "/b/c"`},
		{"/a", "/proc", "must not be /proc or below"},
		{"/a", "/proc/self", "must not be /proc or below"},
		{"/a", "/dev/shm", "must not be /dev or below"},
		{"/a", "/sys/fs/cgroup", "must not be /sys or below"},
		{"/a", "/etc", "must not be /etc itself"},
		{"/a" + strings.Repeat("/b", 2048), "/b", "must be at most 4095"},
		{"/a", strings.Repeat(long, 17), "must be at most 4095"},
		{long + "a", "/b", "component of 256 bytes"},
		{"/a", "/b" + long + "a", "component of 256 bytes"},
	} {
		err := Mount{Source: c.source, Target: c.target}.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%.40q %.40q: %v, want %q", c.source, c.target, err, c.want)
		}
		if err != nil {
			checkMessage(t, err)
		}
	}
}

func TestMountLayer(t *testing.T) {
	id := layerIDs(1)[0]
	for _, c := range []struct {
		name string
		m    Mount
		want string
	}{
		{"unpublished", newLayer, ""},
		{"published", oldLayer, ""},
		{"published, writable", Mount{Layer: id, Source: "/", Target: "/a"}, "read_only"},
		{"unpublished, read-only", Mount{Layer: "a", Source: "/", Target: "/a", ReadOnly: true}, "read_only"},
		{"name like half an ID", Mount{Layer: id[:63], Source: "/", Target: "/a"}, ""},
		{"name with dots", Mount{Layer: "..", Source: "/", Target: "/a"}, "mount layer"},
		{"name with slash", Mount{Layer: "a/b", Source: "/", Target: "/a"}, "mount layer"},
		{"ID in upper case", Mount{Layer: strings.Repeat("A", 64), Source: "/", Target: "/a", ReadOnly: true}, "mount layer"},
		{"ID of 65", Mount{Layer: id + "0", Source: "/", Target: "/a", ReadOnly: true}, "mount layer"},
		{"part of a layer", Mount{Layer: "a", Source: "/fs", Target: "/a"}, "mount source"},
		{"source of the host", Mount{Layer: "a", Source: "/..", Target: "/a"}, "mount source"},
		{"volume", Mount{Layer: "a", Volume: "v", Source: "/", Target: "/a"}, "mount layer"},
		{"within", Mount{Layer: "a", Within: "/", Source: "/", Target: "/a"}, "mount layer"},
		{"no_links", Mount{Layer: "a", NoLinks: "/", Source: "/", Target: "/a"}, "mount layer"},
		{"users", Mount{Layer: "a", Users: true, Source: "/", Target: "/a"}, "mount layer"},
	} {
		err := c.m.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestMountSet(t *testing.T) {
	many := func(n int) (ms []Mount) {
		for i := range n {
			ms = append(ms, Mount{Source: "/a", Target: "/m" + strconv.Itoa(i)})
		}
		return ms
	}
	for _, c := range []struct {
		name string
		ms   []Mount
		want string
	}{
		{"none", nil, ""},
		{"one source twice", []Mount{{Source: "/a", Target: "/b"}, {Source: "/a", Target: "/c", ReadOnly: true}}, ""},
		{"nested", []Mount{{Source: "/a", Target: "/b"}, {Source: "/c", Target: "/b/c"}}, ""},
		{"target twice", []Mount{{Source: "/a", Target: "/b"}, {Source: "/c", Target: "/b", ReadOnly: true}}, `mounts.target "/b": is used by two mounts, each needs its own`},
		{"invalid", []Mount{{Source: "/a", Target: "/b"}, {Source: "c", Target: "/c", ReadOnly: true}}, `mounts[1].source "c": must be an absolute path`},
		{"as many as possible", many(MaxMounts), ""},
		{"too many", many(MaxMounts + 1), `mounts 65: must be at most 64`},
	} {
		if err := (Spec{Mounts: c.ms}).Validate(); err == nil && c.want != "" || err != nil && err.Error() != c.want {
			t.Errorf("%s: %v, want %q", c.name, err, c.want)
		}
	}
}

func TestInOrder(t *testing.T) {
	in := []Mount{{Target: "/a/b/c"}, {Target: "/z"}, {Target: "/a/b"}, {Target: "/a"}}
	want := []Mount{{Target: "/z"}, {Target: "/a"}, {Target: "/a/b"}, {Target: "/a/b/c"}}
	if got := InOrder(in); !slices.Equal(got, want) || in[0].Target != "/a/b/c" {
		t.Errorf("InOrder = %v, and its argument %v", got, in)
	}
}

// FuzzMountValidate: an accepted target is a clean path below /, outside of the directories
// that belong to boxd.
func FuzzMountValidate(f *testing.F) {
	f.Add("/a", "/b")
	f.Add("/a/../b", "/proc/../c")
	f.Add("//", "/\xffdev")
	f.Add("/a\n", "/dev/")
	f.Fuzz(func(t *testing.T, source, target string) {
		if err := (Mount{Source: source, Target: target}).Validate(); err != nil {
			checkMessage(t, err)
			return
		}
		if source[0] != '/' || strings.ContainsFunc(source+target, isControl) {
			t.Errorf("accepted %q %q", source, target)
		}
		first, _, _ := strings.Cut(target[1:], "/")
		if target != path.Join("/", target) || slices.Contains([]string{"", "..", "proc", "dev", "sys"}, first) {
			t.Errorf("accepted target %q", target)
		}
	})
}
