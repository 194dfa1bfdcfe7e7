package skills

import (
	"context"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"unicode/utf8"
)

// FuzzArchive checks the promises about every accepted archive: names, numbers and sizes are within
// bounds, and nothing is created outside the directory into which it is unpacked.
func FuzzArchive(f *testing.F) {
	f.Add([]byte("PK"))
	f.Add(makeZip(f, skillFile(""), file{name: "a/", mode: fs.ModeDir | 0o755}, file{name: "a/b", content: "hello hello hello", mode: 0o755}))
	f.Add(makeZip(f, skillFile("top/"), file{name: "top/../x", content: "x"}))
	f.Add(rawZip(rawEntry{name: "SKILL.md", content: "x"}, rawEntry{name: "a", content: "content"}))
	f.Add(rawZip(rawEntry{name: "SKILL.md", content: "x", flags: flagUTF8}, rawEntry{name: "C:a", content: "content", size: 3}))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, p []byte) {
		temp, err := os.CreateTemp(dir, "")
		if err != nil {
			t.Fatal(err)
		}
		defer os.Remove(temp.Name())
		defer temp.Close()
		if _, err := temp.Write(p); err != nil {
			t.Fatal(err)
		}
		a, err := openArchive(temp, int64(len(p)))
		if err != nil {
			return
		}
		checkArchive(t, a)
		a.strip()
		unpackInto(t, a)
	})
}

func checkArchive(t *testing.T, a *archive) {
	var total int64
	seen := make(map[string]bool)
	for _, e := range a.entries {
		total += int64(e.f.UncompressedSize64)
		if !fs.ValidPath(e.name) || e.name == "." || !utf8.ValidString(e.name) || seen[e.name] || len(e.name) > 2*maxZipName || e.f.UncompressedSize64 > maxZipFile {
			t.Errorf("an entry %q of %d bytes", e.name, e.f.UncompressedSize64)
		}
		seen[e.name] = true
	}
	if total > maxZipUnpacked || len(a.entries) > maxZipEntries {
		t.Errorf("%d entries, %d bytes", len(a.entries), total)
	}
}

func unpackInto(t *testing.T, a *archive) {
	outer := t.TempDir()
	if err := os.Mkdir(filepath.Join(outer, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(filepath.Join(outer, "in"))
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	places := a.discover()
	for _, p := range places {
		if _, ok := a.files[filepath.Join(p.dir, p.entry)]; !ok {
			t.Errorf("a skill was found where none is: %v", p)
		}
	}
	_ = a.unpack(context.Background(), func(e zipEntry) error { return makeDirs(root, e.name) }, func(e zipEntry, r io.Reader) error {
		if err := makeDirs(root, filepath.Dir(e.name)); err != nil {
			return err
		}
		return create(root, e.name, e.mode, r)
	})
	if names, err := os.ReadDir(outer); err != nil || len(names) != 1 {
		t.Errorf("outside there is %v: %v", names, err)
	}
	_ = filepath.WalkDir(outer, func(name string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() && !d.Type().IsRegular() {
			t.Errorf("%s is %v: %v", name, d, err)
		}
		return nil
	})
}
