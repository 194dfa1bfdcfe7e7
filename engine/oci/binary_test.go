package oci

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

// script writes a program to a new directory that only root can write.
func script(t *testing.T, text string) string {
	t.Helper()
	testutil.RequireRoot(t)
	path := filepath.Join(testutil.ReachableDir(t, "/run"), "runtime")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// wantUnusable checks that err is ErrUnusable, one line, and contains all words.
func wantUnusable(t *testing.T, err error, words ...string) {
	t.Helper()
	if !errors.Is(err, ErrUnusable) {
		t.Errorf("error %v, not ErrUnusable", err)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("error %q does not say %q", err, w)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("error %q has several lines", err)
	}
}

// TestCheck: root executes no program that another user can write or replace.
func TestCheck(t *testing.T) {
	path := script(t, "true")
	dir := filepath.Dir(path)
	first, err := Check(path)
	if err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	for _, c := range [][2]string{{link, "runtime"}, {filepath.Join(dir, "long"), "../" + filepath.Base(dir) + "/./link"}} {
		name, target := c[0], c[1]
		if err := os.Symlink(target, name); err != nil {
			t.Fatal(err)
		}
		if same, err := Check(name); err != nil || same != first {
			t.Errorf("%s: %+v, %v", name, same, err)
		}
	}
	open := filepath.Join(dir, "open")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.Mkdir(open, 0o755))
	must(os.WriteFile(filepath.Join(open, "runtime"), nil, 0o755))
	must(os.Symlink("open/runtime", filepath.Join(dir, "indirect")))
	must(os.Symlink("../runtime", filepath.Join(open, "back")))
	must(os.Symlink("open/back", filepath.Join(dir, "detour")))
	must(os.Symlink("loop", filepath.Join(dir, "loop")))
	must(os.Chmod(open, 0o777))
	must(os.WriteFile(filepath.Join(dir, "foreign"), nil, 0o755))
	must(os.Chown(filepath.Join(dir, "foreign"), 1000, 0))
	must(os.WriteFile(filepath.Join(dir, "group"), nil, 0o755))
	must(os.Chmod(filepath.Join(dir, "group"), 0o775))
	must(os.WriteFile(filepath.Join(dir, "plain"), nil, 0o644))
	for _, c := range []struct{ path, words string }{
		{"runtime", "absolute"},
		{dir + "/../x", "cleaned"},
		{"", "absolute"},
		{dir + "/absent", "no such file"},
		{dir, "is a directory"},
		{dir + "/runtime/x", "not a directory"},
		{dir + "/foreign", "must belong to root"},
		{dir + "/group", "writable by root only"},
		{dir + "/plain", "not executable"},
		{dir + "/loop", "too many levels"},
		{open + "/runtime", "another program could be put in its place"},
		{dir + "/indirect", "another program could be put in its place"},
		{dir + "/detour", "another program could be put in its place"},
		{"/dev/null", "regular file"},
	} {
		_, err := Check(c.path)
		wantUnusable(t, err, c.words)
	}
	// With the sticky bit, nobody else replaces what is root's.
	must(os.Chmod(open, 0o777|os.ModeSticky))
	if _, err := Check(open + "/runtime"); err != nil {
		t.Errorf("in a directory with the sticky bit: %v", err)
	}
	must(os.Lchown(filepath.Join(open, "back"), 1000, 0))
	_, err = Check(open + "/back")
	wantUnusable(t, err, "must belong to root")
	must(os.WriteFile(path, []byte("#!/bin/sh\nfalse\n"), 0o755))
	if second, err := Check(path); err != nil || second == first {
		t.Errorf("a file that was written again is the same: %+v, %v", second, err)
	}
}

// TestFind: the runtime is not looked for in PATH.
func TestFind(t *testing.T) {
	dir := filepath.Dir(script(t, "true"))
	t.Setenv("PATH", dir)
	_, err := Find("runtime")
	wantUnusable(t, err, "there is no runtime in")
	before := Dirs
	defer func() { Dirs = before }()
	Dirs = []string{"/dev/null", "/absent", dir}
	if path, err := Find("runtime"); path != dir+"/runtime" || err != nil {
		t.Errorf("%q, %v", path, err)
	}
}
