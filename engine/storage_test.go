package engine

import (
	"errors"
	"strings"
	"testing"
)

func TestVolumeDefaults(t *testing.T) {
	for _, c := range []struct{ bytes, inodes, want int64 }{
		{1 << 20, 0, 1024},
		{16 << 20, 0, 1024},
		{16<<20 + 16<<10, 0, 1025},
		{1 << 30, 0, 65536},
		{MaxVolumeBytes, 0, 1 << 28},
		{1 << 30, 100, 100},
	} {
		v := Volume{Name: "v", Bytes: c.bytes, Inodes: c.inodes}.WithDefaults()
		if v.Inodes != c.want || v.WithDefaults() != v {
			t.Errorf("%d bytes, %d inodes: %d, want %d", c.bytes, c.inodes, v.Inodes, c.want)
		}
	}
}

func TestVolumeValidate(t *testing.T) {
	for _, c := range []struct {
		v    Volume
		want string
	}{
		{Volume{"v", 1 << 20, 0, ""}, ""},
		{Volume{"0-a", MaxVolumeBytes, MaxVolumeInodes, ""}, ""},
		{Volume{"", 1 << 20, 0, ""}, `volume "": must be 1 to 64`},
		{Volume{strings.Repeat("v", 65), 1 << 20, 0, ""}, "volume "},
		{Volume{"../v", 1 << 20, 0, ""}, "volume "},
		{Volume{"v", 0, 0, ""}, "volume.bytes 0 B: must be 1 MiB to"},
		{Volume{"v", -1, 0, ""}, "volume.bytes -1: must be"},
		{Volume{"v", 1<<20 - 1, 0, ""}, "volume.bytes"},
		{Volume{"v", MaxVolumeBytes + 1, 0, ""}, "volume.bytes"},
		{Volume{"v", 1 << 20, 15, ""}, "volume.inodes 15: must be 16 to 1073741824"},
		{Volume{"v", 1 << 20, -1, ""}, "volume.inodes -1"},
		{Volume{"v", 1 << 20, MaxVolumeInodes + 1, ""}, "volume.inodes"},
	} {
		checkInvalid(t, c.v.Validate(), c.want)
	}
}

func checkInvalid(t *testing.T, err error, want string) {
	t.Helper()
	if want == "" {
		if err != nil {
			t.Error(err)
		}
		return
	}
	if !errors.Is(err, ErrInvalid) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %q", err, want)
	}
}

func TestDirectoryValidate(t *testing.T) {
	for _, c := range []struct {
		d    Directory
		want string
	}{
		{Directory{Path: "/srv/a", Within: "/srv"}, ""},
		{Directory{Path: "/srv/a/../b", Within: "/srv"}, ""}, // the kernel judges
		{Directory{Path: "/", Volume: "v"}, ""},
		{Directory{Path: "/a/b", Volume: "v", Make: true}, ""},
		{Directory{Path: "/srv/a"}, "directory.within"},
		{Directory{Path: "srv", Within: "/srv"}, "directory.path"},
		{Directory{Path: "", Within: "/srv"}, "directory.path"},
		{Directory{Path: "/a\x00b", Within: "/srv"}, "directory.path"},
		{Directory{Path: "/" + strings.Repeat("x", 4095), Within: "/srv"}, "directory.path"},
		{Directory{Path: "/a", Within: "srv"}, "directory.within"},
		{Directory{Path: "/a", Within: "/", Volume: "v"}, "directory.within"},
		{Directory{Path: "/a", Volume: "V"}, "volume "},
		{Directory{Path: "/srv/../etc", Within: "/", Make: true}, "directory.path"},
		{Directory{Path: "/srv/", Within: "/srv", Make: true}, "directory.path"},
		{Directory{Path: "/srv/a\nb", Within: "/srv", Make: true}, "directory.path"},
	} {
		checkInvalid(t, c.d.Validate(), c.want)
	}
}

func TestValidateLimit(t *testing.T) {
	host := Directory{Path: "/srv/a", Within: "/srv"}
	for _, c := range []struct {
		d             Directory
		bytes, inodes int64
		want          string
	}{
		{host, 0, 0, ""},
		{host, 1 << 20, 0, ""},
		{host, 0, 1, ""},
		{host, MaxVolumeBytes, MaxVolumeInodes, ""},
		{host, -1, 0, "directory.bytes"},
		{host, MaxVolumeBytes + 1, 0, "directory.bytes"},
		{host, 0, -1, "directory.inodes"},
		{host, 0, MaxVolumeInodes + 1, "directory.inodes"},
		{Directory{Path: "/", Volume: "v"}, 1, 1, "directory.volume"},
		{Directory{Path: "/"}, 1, 1, "directory.within"},
	} {
		checkInvalid(t, ValidateLimit(c.d, c.bytes, c.inodes), c.want)
	}
}
