package linux

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestFileTime(t *testing.T) {
	dir := t.TempDir()
	changed := func(name string) time.Time {
		t.Helper()
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return time.Unix(st.Ctim.Unix())
	}
	for range 50 {
		before := changed("before")
		tick, err := FileTime()
		if err != nil {
			t.Fatal(err)
		}
		if after := changed("after"); !before.Before(tick) || after.Before(tick) {
			t.Fatalf("before %v, tick %v, after %v", before, tick, after)
		}
	}
}
