package rootfs

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCPUMask(t *testing.T) {
	for _, c := range []struct {
		first, end int
		want       string
	}{
		{0, 1, "1"}, {1, 2, "2"}, {0, 2, "3"}, {0, 32, "ffffffff"}, {0, 33, "1,ffffffff"}, {32, 33, "1,00000000"}, {70, 71, "40,00000000,00000000"},
	} {
		if got := cpuMask(c.first, c.end); got != c.want {
			t.Errorf("%d to %d: %q, want %q", c.first, c.end, got, c.want)
		}
	}
}

// TestShowProcessors makes a series of changes in one directory, one of them after an interrupted one,
// and counts the pages and inodes that they take.
func TestShowProcessors(t *testing.T) {
	top := t.TempDir()
	dir, err := os.Open(top)
	if err != nil {
		t.Fatal(err)
	}
	defer dir.Close()
	if err := os.Mkdir(filepath.Join(top, processorsDir), 0o755); err != nil {
		t.Fatal(err)
	}
	cpu := filepath.Join(top, processorsDir)
	for _, n := range []int{1, 2, 12, 2, maxTopology, maxTopology + 60, 3, 1} {
		if err := errors.Join(os.MkdirAll(filepath.Join(top, "new", "left"), 0o755), os.WriteFile(filepath.Join(top, "new", "link"), nil, 0o444)); err != nil {
			t.Fatal(err)
		}
		if err := showProcessors(dir, n); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{}
		for _, f := range cpuFiles(n) {
			want[f.path] = f.content + "\n"
		}
		dirs := 0
		err := filepath.WalkDir(cpu, func(path string, e fs.DirEntry, err error) error {
			rel, _ := filepath.Rel(cpu, path)
			if e.IsDir() {
				if strings.HasPrefix(rel, "cpu") && !strings.Contains(rel, "/") {
					dirs++
				}
				return err
			}
			got, rerr := os.ReadFile(path)
			if string(got) != want[rel] {
				t.Errorf("%d processors: %s is %q, want %q", n, rel, got, want[rel])
			}
			delete(want, rel)
			return errors.Join(err, rerr)
		})
		if err != nil || dirs != n || len(want) > 0 {
			t.Errorf("%d processors: %d directories, missing %v, %v", n, dirs, want, err)
		}
		if left, _ := os.ReadDir(top); len(left) != 1 {
			t.Errorf("%d processors: left %v", n, left)
		}
	}
}

// TestProcessorsFit: a tmpfs of the calculated size has room for the old and the new files of many
// processors at the same time.
func TestProcessorsFit(t *testing.T) {
	for _, n := range []int{1, 2, maxTopology, maxTopology + 1, 300} {
		h := &hostFigures{processors: processors{ends: make([]int, n)}}
		bytes, inodes := h.size()
		distinct, all := map[string]bool{}, 0
		for _, f := range cpuFiles(n) {
			distinct[f.content] = true
			all++
		}
		if pages := int64(2 * len(distinct)); bytes < pages*4096 || inodes < pages+2*int64(n) {
			t.Errorf("%d processors: %d pages in %d bytes and %d inodes", n, pages, bytes, inodes)
		}
	}
}
