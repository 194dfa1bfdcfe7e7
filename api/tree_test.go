package api

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/policy"
	"golang.org/x/sys/unix"
)

// growTree makes files below dir, from lines "d/", "f CONTENT" and "l -> TARGET".
func growTree(t *testing.T, dir string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		name, content, _ := strings.Cut(line, " ")
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		target, link := strings.CutPrefix(content, "-> ")
		switch {
		case err != nil:
		case strings.HasSuffix(name, "/"):
			err = os.MkdirAll(path, 0o755)
		case link:
			err = os.Symlink(target, path)
		default:
			err = os.WriteFile(path, []byte(content), 0o640)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// entriesOf describes an archive: names, modes and content.
func entriesOf(t *testing.T, archive io.Reader) string {
	t.Helper()
	var all []string
	for r := tar.NewReader(archive); ; {
		h, err := r.Next()
		if err == io.EOF {
			return strings.Join(all, ", ")
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, strings.TrimSpace(fmt.Sprintf("%s %o %s%s%s", h.Name, h.Mode, content, h.Linkname, h.PAXRecords["BOXD.left_out"])))
	}
}

func TestPackAndUnpack(t *testing.T) {
	f := serve(t, func(o *Options, _ *policy.Config) { o.MaxTree = 1 << 20 })
	c, ctx := f.client(), t.Context()
	ensure(t, c, "a")
	from, to := t.TempDir(), t.TempDir()
	growTree(t, from, "a/b/c.png C", "a/x.txt X", "a.png A", "b/ ", "e/l -> ../a", "raw\xff.png R", "z/y.png Y")
	if err := unix.Mkfifo(from+"/e/p", 0o600); err != nil {
		t.Fatal(err)
	}
	pack := func(globs ...string) string {
		t.Helper()
		archive, err := c.PackFiles(ctx, "a", from, globs...)
		if err != nil {
			t.Fatal(err)
		}
		defer archive.Close()
		return entriesOf(t, archive)
	}
	const all = "a/ 755, a/b/ 755, a/b/c.png 640 C, a/x.txt 640 X, a.png 640 A, b/ 755, e/ 755, e/l 777 ../a, 0 fifo e/p, raw\xff.png 640 R, z/ 755, z/y.png 640 Y"
	for globs, want := range map[string]string{
		"":         all,
		"*.png":    "a.png 640 A, raw\xff.png 640 R",
		"**/*.png": "a/ 755, a/b/ 755, a/b/c.png 640 C, a.png 640 A, raw\xff.png 640 R, z/ 755, z/y.png 640 Y",
		"a b":      "a/ 755, a/b/ 755, a/b/c.png 640 C, a/x.txt 640 X, b/ 755",
		"*/*.txt":  "a/ 755, a/x.txt 640 X",
		"none":     "",
	} {
		if got := strings.ReplaceAll(pack(strings.Fields(globs)...), "GlobalHead.0.0 ", ""); got != want {
			t.Errorf("%s: %s\nwant %s", globs, got, want)
		}
	}

	archive, err := c.PackFiles(ctx, "a", from)
	if err != nil {
		t.Fatal(err)
	}
	defer archive.Close()
	tree, err := c.UnpackFiles(ctx, "a", to+"/new/dir", archive, client.UnpackOptions{Parents: true})
	if want := (apitypes.FileTree{Files: 5, Directories: 5, Symlinks: 1, Bytes: 5}); err != nil || tree != want {
		t.Errorf("%+v, %v", tree, err)
	}
	if info, err := os.Stat(to + "/new/dir/a/b/c.png"); err != nil || info.Mode() != 0o640 {
		t.Errorf("%+v, %v", info, err)
	}
	from = to + "/new/dir"
	if got := pack(); got != strings.ReplaceAll(all, ", 0 fifo e/p", "") {
		t.Errorf("after the way up and down: %s", got)
	}

	for what, check := range map[string]struct {
		err  error
		code string
	}{
		"pack a file":     {second(c.PackFiles(ctx, "a", from+"/a.png")), apitypes.CodeFileType},
		"pack none":       {second(c.PackFiles(ctx, "a", from+"/none")), apitypes.CodeNoFile},
		"bad glob":        {second(c.PackFiles(ctx, "a", from, "../x")), apitypes.CodeInvalid},
		"no tar":          {second(c.UnpackFiles(ctx, "a", to, strings.NewReader(strings.Repeat("no tar ", 200)), client.UnpackOptions{})), apitypes.CodeInvalid},
		"cut":             {second(c.UnpackFiles(ctx, "a", to, io.LimitReader(tarOf(t, &tar.Header{Name: "f", Size: 1000, Typeflag: tar.TypeReg}), 700), client.UnpackOptions{})), apitypes.CodeInvalid},
		"unpack to none":  {second(c.UnpackFiles(ctx, "a", to+"/none", tarOf(t), client.UnpackOptions{})), apitypes.CodeNoFile},
		"too large":       {second(c.UnpackFiles(ctx, "a", to, io.MultiReader(tarOf(t, &tar.Header{Name: "f", Size: 2 << 20, Typeflag: tar.TypeReg})), client.UnpackOptions{})), apitypes.CodeFileTooLarge},
		"over a dir":      {second(c.UnpackFiles(ctx, "a", to, tarOf(t, &tar.Header{Name: "new", Typeflag: tar.TypeReg}), client.UnpackOptions{})), apitypes.CodeFileType},
		"no such session": {second(c.PackFiles(ctx, "b", from)), apitypes.CodeSessionNotFound},
	} {
		if !client.IsCode(check.err, check.code) || strings.Contains(check.err.Error(), "\n") {
			t.Errorf("%s: %v, want %s", what, check.err, check.code)
		}
	}
	// A tree that is too large is refused before the first byte.
	growTree(t, from, "big "+strings.Repeat("x", 1<<20))
	if _, err := c.PackFiles(ctx, "a", from); !client.IsCode(err, apitypes.CodeFileTooLarge) {
		t.Errorf("too large: %v", err)
	}
	if got := pack("b"); got != "b/ 755" {
		t.Errorf("a part of it: %s", got)
	}
}

// tarOf returns an archive of entries whose content is zeros.
func tarOf(t *testing.T, entries ...*tar.Header) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		if h.Mode == 0 {
			h.Mode = 0o644
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write(make([]byte, h.Size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

// TestUnpackStaysInside: no name and no symlink, of the archive or of the tree, leads out of the
// directory.
func TestUnpackStaysInside(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	ensure(t, c, "a")
	dir := t.TempDir()
	growTree(t, dir, "in/ ", "in/inner/ ", "in/near -> inner", "in/far -> ../out", "out/kept K")
	file, link := func(name string) *tar.Header { return &tar.Header{Name: name, Typeflag: tar.TypeReg, Size: 1} }, func(name, to string, kind byte) *tar.Header {
		return &tar.Header{Name: name, Linkname: to, Typeflag: kind}
	}
	for _, entries := range [][]*tar.Header{
		{file("../out/x")}, {file("/etc/x")}, {file("a/../../out/x")},
		{file("far/x")}, {file("far/kept")},
		{link("l", dir+"/out", tar.TypeSymlink), file("l/x")},
		{link("l", "../out", tar.TypeSymlink), file("l/x")},
		{link("l", "../out", tar.TypeSymlink), {Name: "l", Typeflag: tar.TypeDir}, file("l/x")},
		{link("h", "../out/kept", tar.TypeLink)}, {link("h", "far/kept", tar.TypeLink)},
		{link("near/l", "../../out/kept", tar.TypeSymlink), file("near/l")},
		{{Name: "far", Typeflag: tar.TypeDir}, {Name: "far/d", Typeflag: tar.TypeDir}},
	} {
		_, err := c.UnpackFiles(ctx, "a", dir+"/in", tarOf(t, entries...), client.UnpackOptions{})
		t.Logf("%s: %v", entries[0].Name, err)
		out, _ := os.ReadDir(dir + "/out")
		kept, _ := os.ReadFile(dir + "/out/kept")
		if len(out) != 1 || string(kept) != "K" {
			t.Fatalf("%s: %v, %q", entries[0].Name, out, kept)
		}
		var st unix.Stat_t
		if err := unix.Stat(dir+"/out/kept", &st); err != nil || st.Nlink != 1 {
			t.Fatalf("%s: %d links, %v", entries[0].Name, st.Nlink, err)
		}
	}
	// A symlink that stays inside is followed, and one of the name of a file is replaced.
	if _, err := c.UnpackFiles(ctx, "a", dir+"/in", tarOf(t, file("near/x"), file("far")), client.UnpackOptions{}); err != nil {
		t.Error(err)
	}
	if info, err := os.Lstat(dir + "/in/inner/x"); err != nil || info.Size() != 1 {
		t.Error(err)
	}
	if info, err := os.Lstat(dir + "/in/far"); err != nil || !info.Mode().IsRegular() {
		t.Error(err)
	}
	// Devices and the like are left out; hard links are made, also over themselves.
	tree, err := c.UnpackFiles(ctx, "a", dir+"/in", tarOf(t, file("one"), link("two", "one", tar.TypeLink), link("two", "one", tar.TypeLink),
		&tar.Header{Name: "dev", Typeflag: tar.TypeChar}, &tar.Header{Name: "fifo", Typeflag: tar.TypeFifo}), client.UnpackOptions{})
	if err != nil || tree.Skipped != 2 {
		t.Errorf("%+v, %v", tree, err)
	}
	names, _ := filepath.Glob(dir + "/in/.boxd-*")
	var st unix.Stat_t
	if err := unix.Stat(dir+"/in/two", &st); err != nil || st.Nlink != 2 || len(names) != 0 {
		t.Errorf("%d links, %v, %v", st.Nlink, err, names)
	}
}

func TestRename(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	ensure(t, c, "a")
	dir := t.TempDir()
	growTree(t, dir, "a A", "b B", "d/x X", "full/y Y")
	rename := func(from, to string, replace bool) error {
		return c.RenameFile(ctx, "a", apitypes.RenameRequest{Path: dir + "/" + from, To: dir + "/" + to, Replace: replace})
	}
	for _, r := range []struct {
		from, to string
		replace  bool
		code     string
	}{
		{"a", "b", false, apitypes.CodeFileExists}, {"a", "b", true, ""}, {"b", "d/a", false, ""}, {"d", "e", false, ""},
		{"e", "full", true, apitypes.CodeNotEmpty}, {"none", "x", false, apitypes.CodeNoFile}, {"e", "none/x", false, apitypes.CodeNoFile},
		{"e", "e/f", false, apitypes.CodeFileOperation}, {"e/..", "x", false, apitypes.CodeFileOperation},
	} {
		if err := rename(r.from, r.to, r.replace); (err == nil) != (r.code == "") || err != nil && !client.IsCode(err, r.code) {
			t.Errorf("%s to %s: %v, want %s", r.from, r.to, err, r.code)
		}
	}
	if content, err := os.ReadFile(dir + "/e/a"); string(content) != "A" {
		t.Errorf("%q, %v", content, err)
	}
	if err := c.RenameFile(ctx, "a", apitypes.RenameRequest{Path: "x"}); !client.IsCode(err, apitypes.CodeInvalid) || !strings.HasPrefix(err.(*client.Error).Detail, "to ") {
		t.Errorf("no new name: %v", err)
	}
}

func TestCopyBetweenSessions(t *testing.T) {
	f := serve(t, func(o *Options, _ *policy.Config) { o.MaxTree = 1 << 20 })
	c, ctx := f.client(), t.Context()
	ensure(t, c, "a")
	ensure(t, c, "b")
	ensure(t, f.as(strangerToken, ""), "theirs")
	dir := t.TempDir()
	growTree(t, dir, "d/sub/x.c X", "d/y.h Y", "d/l -> y.h", "f F", "taken old", "big "+strings.Repeat("x", 1<<20+1))
	copyTo := func(r apitypes.CopyRequest) (apitypes.FileTree, error) {
		r.From, r.Path = dir+"/"+r.From, dir+"/"+r.Path
		return c.CopyFiles(ctx, "b", r)
	}
	for _, r := range []struct {
		apitypes.CopyRequest
		want apitypes.FileTree
		code string
	}{
		{apitypes.CopyRequest{FromSession: "a", From: "d", Path: "new/d"}, apitypes.FileTree{Files: 2, Directories: 1, Symlinks: 1, Bytes: 2}, ""},
		{apitypes.CopyRequest{From: "d", Path: "part", Glob: []string{"**/*.c"}}, apitypes.FileTree{Files: 1, Directories: 1, Bytes: 1}, ""},
		{apitypes.CopyRequest{FromSession: "a", From: "f", Path: "taken"}, apitypes.FileTree{Files: 1, Bytes: 1}, ""},
		{apitypes.CopyRequest{FromSession: "a", From: "d/l", Path: "followed"}, apitypes.FileTree{Files: 1, Bytes: 1}, ""},
		{apitypes.CopyRequest{FromSession: "a", From: "none", Path: "x"}, apitypes.FileTree{}, apitypes.CodeNoFile},
		{apitypes.CopyRequest{FromSession: "a", From: "f", Path: "d"}, apitypes.FileTree{}, apitypes.CodeFileType},
		{apitypes.CopyRequest{FromSession: "a", From: "d", Path: "f"}, apitypes.FileTree{}, apitypes.CodeFileExists},
		{apitypes.CopyRequest{FromSession: "a", From: "big", Path: "x"}, apitypes.FileTree{}, apitypes.CodeFileTooLarge},
		{apitypes.CopyRequest{FromSession: "a", From: ".", Path: "x"}, apitypes.FileTree{}, apitypes.CodeFileTooLarge},
		{apitypes.CopyRequest{FromSession: "a", From: "d", Path: "x", Glob: []string{"["}}, apitypes.FileTree{}, apitypes.CodeInvalid},
		{apitypes.CopyRequest{FromSession: "../a", From: "d", Path: "x"}, apitypes.FileTree{}, apitypes.CodeInvalid},
		{apitypes.CopyRequest{FromSession: "none", From: "d", Path: "x"}, apitypes.FileTree{}, apitypes.CodeSessionNotFound},
		{apitypes.CopyRequest{FromSession: "theirs", From: "d", Path: "x"}, apitypes.FileTree{}, apitypes.CodeSessionNotFound},
	} {
		got, err := copyTo(r.CopyRequest)
		if got != r.want || (err == nil) != (r.code == "") || err != nil && !client.IsCode(err, r.code) {
			t.Errorf("%+v: %+v, %v", r.CopyRequest, got, err)
		}
	}
	for name, want := range map[string]string{"new/d/sub/x.c": "X", "part/sub/x.c": "X", "taken": "F", "followed": "Y"} {
		if content, err := os.ReadFile(filepath.Join(dir, name)); string(content) != want {
			t.Errorf("%s: %q, %v", name, content, err)
		}
	}
	if target, err := os.Readlink(dir + "/new/d/l"); target != "y.h" {
		t.Errorf("%q, %v", target, err)
	}
}

// A directory is not copied into itself, whatever leads there.
func TestCopyIntoItself(t *testing.T) {
	f := serve(t, nil)
	c, ctx := f.client(), t.Context()
	ensure(t, c, "a")
	ensure(t, c, "b")
	dir := t.TempDir()
	growTree(t, dir, "d/f F", "d/sub/", "link -> d/sub", "e/")
	for _, to := range []string{"/d", "/d/sub", "/d/new/deep", "/link/new"} {
		_, err := c.CopyFiles(ctx, "a", apitypes.CopyRequest{From: dir + "/d", Path: dir + to})
		if !client.IsCode(err, apitypes.CodeInvalid) || !strings.Contains(err.Error(), "must not be the directory that is copied, nor in it") {
			t.Errorf("%s: %v", to, err)
		}
		if _, err := c.CopyFiles(ctx, "a", apitypes.CopyRequest{FromSession: "a", From: dir + "/d/", Path: dir + to}); !client.IsCode(err, apitypes.CodeInvalid) {
			t.Errorf("%s: %v", to, err)
		}
	}
	if _, err := c.CopyFiles(ctx, "a", apitypes.CopyRequest{From: dir + "/d", Path: dir + "/e/copy"}); err != nil {
		t.Error(err)
	}
	if _, err := c.CopyFiles(ctx, "a", apitypes.CopyRequest{From: dir + "/d/f", Path: dir + "/d/sub/g"}); err != nil {
		t.Errorf("a file: %v", err)
	}
	if _, err := os.Stat(dir + "/d/new"); !os.IsNotExist(err) {
		t.Errorf("a refused copy has made a directory: %v", err)
	}
}
