package langbot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func keptAside(t *testing.T, db string) int {
	t.Helper()
	kept, err := filepath.Glob(db + ".damaged-*")
	if err != nil {
		t.Fatal(err)
	}
	return len(kept)
}

// TestCutDatabase: a truncated file counts as damaged, wherever it ends.
func TestCutDatabase(t *testing.T) {
	b := open(t)
	for i := range 40 {
		b.call("box_create_session", specOf(fmt.Sprint("s", i), object{"image": strings.Repeat("i", 4000)}))
	}
	b.stop()
	whole, err := os.ReadFile(b.o.DB)
	if err != nil {
		t.Fatal(err)
	}
	s, dir := &Server{o: b.o, log: b.o.Logger}, t.TempDir()
	for n := 4096; n < len(whole)*3/4; n += 28 << 10 {
		name := filepath.Join(dir, fmt.Sprint(n))
		if err := os.WriteFile(name, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		db, err := s.openDB(name)
		if err != nil {
			t.Fatalf("%d of %d bytes: %v", n, len(whole), err)
		}
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	}
	if kept, _ := filepath.Glob(dir + "/*.damaged-*"); len(kept) == 0 {
		t.Error("no cut was noticed")
	}
	b.start()
}

// TestRefusedDatabase: after a system error, the database does not count as damaged; it records
// who is kept out.
func TestRefusedDatabase(t *testing.T) {
	b := open(t)
	b.stop()
	s := &Server{o: b.o, log: b.o.Logger}
	full := filepath.Join(t.TempDir(), "db")
	if err := os.Symlink("/dev/full", full); err != nil {
		t.Fatal(err)
	}
	if _, err := s.openDB(full); err == nil || keptAside(t, full) != 0 {
		t.Errorf("a full disk: %v, %d kept aside", err, keptAside(t, full))
	}
	b.start()
}
