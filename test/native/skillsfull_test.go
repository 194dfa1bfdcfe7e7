package native

import (
	"archive/zip"
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/testutil"
	"github.com/boxd/boxd/langbot/skills"
	"github.com/boxd/boxd/langbot/transfer"
)

// smallStore is a store of skills in a file system with few inodes.
type smallStore struct {
	skillStore
	dir string
}

func newSmallStore(t *testing.T, inodes int) *smallStore {
	t.Helper()
	testutil.RequireRoot(t)
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, fmt.Sprint("size=4m,nr_inodes=", inodes)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	files := transfer.NewSet(t.TempDir(), 20<<20, transfer.NewPool(1<<30))
	t.Cleanup(files.Close)
	return &smallStore{skillStore{t: t, files: files, Store: skills.New(slog.New(slog.DiscardHandler)), root: skills.Root{
		Namespace: "ns", Path: "/srv/skills",
		Open: func(context.Context, bool) (*os.File, error) { return os.Open(dir) },
	}}, dir}
}

// fill creates files in a new directory fill of a skill until only left inodes are free.
func (s *smallStore) fill(skill string, left uint64) {
	s.t.Helper()
	fill := filepath.Join(s.dir, skill, "fill")
	if err := os.MkdirAll(fill, 0o755); err != nil {
		s.t.Fatal(err)
	}
	for i := 0; ; i++ {
		var st unix.Statfs_t
		if err := unix.Statfs(s.dir, &st); err != nil {
			s.t.Fatal(err)
		}
		if st.Ffree <= left {
			return
		}
		if err := os.WriteFile(filepath.Join(fill, fmt.Sprint(i)), nil, 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (s *smallStore) remove(name string) {
	s.t.Helper()
	if err := os.RemoveAll(filepath.Join(s.dir, name)); err != nil {
		s.t.Fatal(err)
	}
}

// names are the names in the register and whose they are.
func (s *smallStore) names() string {
	list, _ := filepath.Glob(s.dir + "/.boxd-names/*")
	var all []string
	for _, name := range list {
		dir, _ := os.Readlink(name)
		all = append(all, filepath.Base(name)+":"+dir)
	}
	return strings.Join(all, " ")
}

// are fails the test unless the register and the root have these names, and there is
// nothing on its way.
func (s *smallStore) are(names, dirs string) {
	s.t.Helper()
	if got := s.names(); got != names {
		s.t.Errorf("names are %q, want %q", got, names)
	}
	list, err := os.ReadDir(s.dir)
	if err != nil {
		s.t.Fatal(err)
	}
	var got []string
	for _, e := range list {
		if e.Name() != ".boxd-names" {
			got = append(got, e.Name())
		}
	}
	if strings.Join(got, " ") != dirs {
		s.t.Errorf("there is %q, want %q", got, dirs)
	}
}

func named(name string) string { return "---\nname: " + name + "\n---\n" }

// skillZip is an archive of skills of these names, in directories called a, b and so on.
func skillZip(t *testing.T, names ...string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := zip.NewWriter(&b)
	for i, name := range names {
		f, err := w.Create(fmt.Sprintf("%c/SKILL.md", 'a'+i))
		if err == nil {
			_, err = f.Write([]byte(named(name)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestSkillsDeleteFull: a store that is full can be emptied, whatever it lacks.
func TestSkillsDeleteFull(t *testing.T) {
	testutil.Long(t)
	s := newSmallStore(t, 100)
	s.must("box_create_skill", map[string]any{"skill": map[string]any{"name": "big"}}, `"name":"big"`)
	if err := os.WriteFile(filepath.Join(s.dir, "big/f"), make([]byte, 8<<20), 0o644); !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	s.full("box_write_skill_file", map[string]any{"name": "big", "path": "SKILL.md", "content": named("other")})
	s.are("big:big", "big")
	s.must("box_delete_skill", map[string]any{"name": "big"}, `"deleted":"big"`)
	s.are("", "")
	s.must("box_create_skill", map[string]any{"skill": map[string]any{"name": "s"}}, `"name":"s"`)
	s.must("box_create_skill", map[string]any{"skill": map[string]any{"name": "old"}}, `"name":"old"`)
	s.remove(".boxd-names") // as from before there was one
	s.fill("s", 0)
	s.full("box_create_skill", map[string]any{"skill": map[string]any{"name": "t"}})
	s.must("box_list_skills", map[string]any{}, `"name":"old"`)
	s.must("box_delete_skill", map[string]any{"name": "s"}, `"deleted":"s"`)
	s.are("", "old")
	s.must("box_create_skill", map[string]any{"skill": map[string]any{"name": "t"}}, `"name":"t"`)
	s.are("old:old t:t", "old t")
}

// TestSkillsNamesFull: a name stays whose it is where there is no room to give it away.
func TestSkillsNamesFull(t *testing.T) {
	testutil.Long(t)
	s := newSmallStore(t, 100)
	for _, name := range []string{"one", "broken"} {
		s.must("box_install_skill_zip", map[string]any{"file_key": s.send(skillZip(t, name)), "filename": name + ".zip"}, name)
	}
	s.remove("broken-upload/SKILL.md")
	const before, dirs = "broken:broken-upload one:one-upload", "broken-upload one-upload"
	s.are(before, dirs)
	for _, left := range []uint64{0, 1} { // for the name, and for the file
		s.fill("one-upload", left)
		for _, name := range []string{"other", "broken"} {
			s.full("box_write_skill_file", map[string]any{"name": "one", "path": "SKILL.md", "content": named(name)})
			s.are(before, dirs)
			s.must("box_get_skill", map[string]any{"name": "one"}, `"name":"one"`)
		}
		s.remove("one-upload/fill")
	}
	// An install takes a name, and then there is no room for the next one's.
	p := skillZip(t, "broken", "new")
	install := map[string]any{"filename": "z.zip", "source_paths": []string{"a", "b"}}
	s.fill("one-upload", 7)
	install["file_key"] = s.send(p)
	s.full("box_install_skill_zip", install)
	s.are(before, dirs)
	s.remove("one-upload/fill")
	s.fill("one-upload", 8)
	install["file_key"] = s.send(p)
	s.must("box_install_skill_zip", install, `"name":"new"`)
	s.are("broken:z-a-upload new:z-b-upload one:one-upload", "broken-upload one-upload z-a-upload z-b-upload")
}
