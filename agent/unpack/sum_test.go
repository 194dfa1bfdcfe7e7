package unpack

import (
	"archive/tar"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// TestSum: whatever changes in a layer changes its sum, and a change that is taken back does not.
func TestSum(t *testing.T) {
	content := archive(t, directory("./"), directory("d"), file("d/f", "text"), file("g", "text"), symlink("l", "d/f"),
		hardlink("h", "g"), file(".wh.w", ""), entry{name: "p", kind: tar.TypeFifo, mode: 0o600}, file("d/.wh..wh..opq", ""))
	seen := make(map[string]string)
	top := func(layer, name string) string { return filepath.Join(layer, "fs", name) }
	back := func(name string) func(*testing.T, string) error {
		return func(t *testing.T, layer string) error { return os.Chtimes(top(layer, name), someTime, someTime) }
	}
	for _, c := range []struct {
		name   string
		change func(t *testing.T, layer string) error
		after  func(t *testing.T, layer string) error // makes the time of a directory what it was
	}{
		{"nothing", func(*testing.T, string) error { return nil }, nil},
		{"mode", func(_ *testing.T, l string) error { return os.Chmod(top(l, "g"), 0o600) }, nil},
		{"mode of a directory", func(_ *testing.T, l string) error { return os.Chmod(top(l, "d"), 0o700) }, nil},
		{"time", func(_ *testing.T, l string) error { return os.Chtimes(top(l, "g"), someTime, someTime.Add(1)) }, nil},
		{"content", func(_ *testing.T, l string) error { return os.WriteFile(top(l, "g"), []byte("texT"), 0) }, back("g")},
		{"size", func(_ *testing.T, l string) error { return os.Truncate(top(l, "g"), 3) }, back("g")},
		{"target", func(t *testing.T, l string) error {
			if err := os.Remove(top(l, "l")); err != nil {
				return err
			}
			if err := os.Symlink("d/g", top(l, "l")); err != nil {
				return err
			}
			ts := unix.NsecToTimespec(someTime.UnixNano())
			return unix.UtimesNanoAt(unix.AT_FDCWD, top(l, "l"), []unix.Timespec{ts, ts}, unix.AT_SYMLINK_NOFOLLOW)
		}, back("")},
		{"name", func(_ *testing.T, l string) error { return os.Rename(top(l, "g"), top(l, "G")) }, back("")},
		{"place", func(_ *testing.T, l string) error { return os.Rename(top(l, "g"), top(l, "d/g")) }, func(t *testing.T, l string) error {
			return os.Chtimes(top(l, "d"), someTime, someTime)
		}},
		{"hard link", func(t *testing.T, l string) error {
			if err := os.Remove(top(l, "h")); err != nil {
				return err
			}
			if err := os.WriteFile(top(l, "h"), []byte("text"), 0o644); err != nil {
				return err
			}
			return back("h")(t, l)
		}, back("")},
		{"whiteout", func(_ *testing.T, l string) error { return os.Remove(top(l, "w")) }, back("")},
		{"opaque", func(_ *testing.T, l string) error { return os.WriteFile(filepath.Join(l, "opaque"), nil, 0) }, nil},
		{"attribute", func(_ *testing.T, l string) error { return unix.Setxattr(top(l, "g"), "user.x", []byte("1"), 0) }, nil},
		{"value of an attribute", func(_ *testing.T, l string) error { return unix.Setxattr(top(l, "g"), "user.x", []byte("2"), 0) }, nil},
		{"attribute of a directory", func(_ *testing.T, l string) error { return unix.Setxattr(top(l, "d"), "user.x", []byte("1"), 0) }, nil},
	} {
		layer, _, err := unpackTo(t, content, allLimits, "")
		if err != nil {
			t.Fatal(err)
		}
		before, err := sum(layer)
		if err != nil {
			t.Fatal(err)
		}
		if before.Files != 8 || before.Bytes != 8 || len(before.SHA256) != 64 {
			t.Errorf("%+v, want 8 files of 8 bytes", before)
		}
		if err := c.change(t, layer); err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if c.after != nil {
			if err := c.after(t, layer); err != nil {
				t.Fatal(err)
			}
		}
		after, err := sum(layer)
		if err != nil {
			t.Fatal(err)
		}
		if other, ok := seen[after.SHA256]; ok {
			t.Errorf("%s: the sum is that of %s", c.name, other)
		}
		seen[after.SHA256] = c.name
		if (before.SHA256 == after.SHA256) != (c.name == "nothing") {
			t.Errorf("%s: sums %s and %s", c.name, before.SHA256, after.SHA256)
		}
	}
}

// TestSumTime: the same archive has the same sum at any time.
func TestSumTime(t *testing.T) {
	content := archive(t, file("a/b/c", "1"), file(".wh.x", ""), directory("d"), file("d/e", "1"))
	var sums [2]string
	for i := range sums {
		layer, _, err := unpackTo(t, content, allLimits, "")
		if err != nil {
			t.Fatal(err)
		}
		s, err := sum(layer)
		if err != nil {
			t.Fatal(err)
		}
		sums[i] = s.SHA256
		time.Sleep(time.Millisecond) // so that a time of the clock would differ
	}
	if sums[0] != sums[1] {
		t.Errorf("sums %q", sums)
	}
}
