package mounts

import (
	"strings"
	"testing"
)

func TestParseMountEntry(t *testing.T) {
	for _, c := range []struct {
		line string
		id   uint64
		want mountEntry
	}{
		{"36 35 98:0 /sub /mnt/p rw,noatime master:1 - ext3 /dev/root rw", 36, mountEntry{"98:0", "/sub", "/mnt/p", "ext3"}},
		{"1 0 0:2 / / rw - rootfs none rw", 1, mountEntry{"0:2", "/", "/", "rootfs"}},
		{`7 1 0:3 /a\040b /c\134d\011\012 rw shared:1 master:2 - tmpfs t rw`, 7, mountEntry{"0:3", "/a b", "/c\\d\t\n", "tmpfs"}},
		{`8 1 0:3 /gone//deleted /x rw - tmpfs`, 8, mountEntry{"0:3", "/gone//deleted", "/x", "tmpfs"}},
	} {
		if id, got, err := parseMountEntry(c.line); err != nil || id != c.id || got != c.want {
			t.Errorf("%q: %d %+v, %v, want %d %+v", c.line, id, got, err, c.id, c.want)
		}
	}
	for _, bad := range []string{"", "x", "36 35 98:0 / / rw", "x 35 98:0 / / rw - t", "36 35 98:0 / - t"} {
		if _, _, err := parseMountEntry(bad); err == nil || !strings.Contains(err.Error(), "mountinfo") {
			t.Errorf("%q was accepted: %v", bad, err)
		}
	}
}

func TestReadMountTableHasTheRoot(t *testing.T) {
	table, err := readMountTable()
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range table {
		if e.point == "/" && e.fsType != "" && strings.Contains(e.device, ":") {
			return
		}
	}
	t.Errorf("no root among %d mounts", len(table))
}

func TestIsBelow(t *testing.T) {
	for _, c := range []struct {
		p, dir string
		want   bool
	}{
		{"/a", "/a", true},
		{"/a/b", "/a", true},
		{"/ab", "/a", false},
		{"/a", "/a/b", false},
		{"/a", "/", true},
		{"/", "/", true},
	} {
		if got := isBelow(c.p, c.dir); got != c.want {
			t.Errorf("isBelow(%q, %q) = %v", c.p, c.dir, got)
		}
	}
}
