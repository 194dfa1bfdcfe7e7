package daemon

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/config"
)

// TestRoom: a disk is full when less than the percentage is free, and one that cannot be asked does not count.
func TestRoom(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct {
		disks []string
		least int
		full  bool
	}{
		{[]string{dir}, 0, false}, {[]string{dir}, 100, true}, {[]string{dir + "/missing"}, 100, false}, {[]string{dir + "/missing", dir}, 100, true}, {nil, 100, false},
	} {
		err := Room(c.disks, c.least)
		if (err != nil) != c.full || err != nil && (strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), dir)) {
			t.Errorf("%q with %d %%: %v", c.disks, c.least, err)
		}
	}
}

// TestImageFiles: the daemon may read login files, and what symlinks of /etc lead to.
func TestImageFiles(t *testing.T) {
	login := filepath.Join(t.TempDir(), "login")
	d := &daemon{}
	d.Config.Images.Registries = map[string]config.Registry{"docker.io": {LoginFile: login}, "ghcr.io": {}}
	files := d.imageFiles()
	if !slices.Contains(files, login) || slices.Contains(files, "") {
		t.Errorf("files %q", files)
	}
	for _, file := range files {
		if _, err := os.Lstat(file); file != login && (err != nil || !filepath.IsAbs(file)) || filepath.Dir(file) == "/etc" {
			t.Errorf("file %q: %v", file, err)
		}
	}
	var paths []string
	for _, p := range d.paths() {
		paths = append(paths, p.Path)
	}
	if !slices.Contains(paths, filepath.Dir(login)) {
		t.Errorf("Landlock allows %q", paths)
	}
}

// TestStatusWarnings: an image that could not be prefetched is in the status until it could be.
func TestStatusWarnings(t *testing.T) {
	d := &daemon{warnings: []string{"w"}}
	d.images.failed = map[string]string{"b": "no b: " + fs.ErrNotExist.Error(), "a": "no a"}
	if got := d.statusWarnings(); !slices.Equal(got, []string{"w", "no a", "no b: file does not exist"}) {
		t.Errorf("warnings %q", got)
	}
	delete(d.images.failed, "a")
	delete(d.images.failed, "b")
	if got := d.statusWarnings(); !slices.Equal(got, []string{"w"}) {
		t.Errorf("warnings %q", got)
	}
}
