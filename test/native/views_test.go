package native

import (
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
)

// TestViewsAreBounded: directories that a client has open are mounts of the launcher, so their number is bounded. Closed
// ones do not count, and nothing of them remains.
func TestViewsAreBounded(t *testing.T) {
	testutil.Long(t)
	s := startStorage(t, strangerUID)
	dir := t.TempDir()
	if err := os.Chown(dir, strangerUID, strangerUID); err != nil {
		t.Fatal(err)
	}
	d := engine.Directory{Path: dir, Within: dir}
	attached := func() int {
		text, err := os.ReadFile("/proc/" + strconv.Itoa(serviceProcesses(t, "launcher", s.dir)[0]) + "/mountinfo")
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(text), "/private/views/")
	}
	for range 2 {
		var open []*os.File
		for {
			f, err := s.OpenDirectory(patient(t), d)
			if err != nil {
				if len(open) < 100 || len(open) > 1000 || !strings.Contains(err.Error(), "close some") {
					t.Errorf("after %d directories: %v", len(open), err)
				}
				break
			}
			open = append(open, f)
		}
		if n := attached(); n != len(open) {
			t.Errorf("%d are attached, %d are open", n, len(open))
		}
		for _, f := range open {
			f.Close()
		}
	}
	waitUntil(t, "nothing is attached", func() bool { return attached() == 0 })
}
