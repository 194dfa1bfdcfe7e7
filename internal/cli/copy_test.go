package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"

	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/boxd/boxd/api/apitypes"
	"golang.org/x/sys/unix"
)

func TestParsePlace(t *testing.T) {
	for s, want := range map[string]place{
		"s:/a": {"s", "/a"}, "s:a": {"s", "a"}, "s:": {"s", ""}, "s:../x": {"s", "../x"}, "s:a:b": {"s", "a:b"},
		"./a:b": {"", "./a:b"}, "/a:b": {"", "/a:b"}, ":a": {"", ":a"}, "-": {"", "-"}, "a": {"", "a"}, ".": {"", "."}, "..": {"", ".."}, ".a:b": {"", ".a:b"},
	} {
		if got := parsePlace(s); got != want {
			t.Errorf("%q: %+v, want %+v", s, got, want)
		}
	}
}

// newFileDaemon serves the files API of session s with the directory dir as root.
func newFileDaemon(t *testing.T, dir string) *fakeDaemon {
	t.Helper()
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { root.Close() })
	describe := func(info fs.FileInfo, name string) apitypes.FileInfo {
		i := apitypes.FileInfo{Name: filepath.Base(name), Size: info.Size(), Mode: fmt.Sprintf("%04o", info.Mode().Perm())}
		i.Type = map[fs.FileMode]string{0: "file", fs.ModeDir: "dir", fs.ModeSymlink: "symlink", fs.ModeNamedPipe: "fifo"}[info.Mode().Type()]
		if i.Type == "symlink" {
			i.Target, _ = root.Readlink(name)
		}
		return i
	}
	return newFakeDaemon(t, func(r seen, w http.ResponseWriter) {
		method, uri, _ := strings.Cut(r.what, " ")
		u, err := url.Parse(uri)
		if err != nil {
			t.Error(err)
		}
		q := u.Query()
		name := filepath.Join(".", strings.TrimPrefix(q.Get("path"), "/"))
		var answer any
		switch method + strings.TrimPrefix(u.Path, "/v1/sessions/s") {
		case "GET":
			answer = apitypes.Session{ID: "s", WorkspaceTarget: "/w"}
		case "GET/files/stat":
			var info, followed fs.FileInfo
			if info, err = root.Lstat(name); err == nil {
				i := describe(info, name)
				if followed, _ = root.Stat(name); followed != nil && i.Target != "" {
					target := i.Target
					i = describe(followed, name)
					i.Target = target
				}
				answer = i
			}
		case "GET/files/content":
			var text []byte
			if text, err = root.ReadFile(name); err == nil {
				w.Write(text)
				return
			}
		case "PUT/files/content":
			mode, _ := strconv.ParseUint(q.Get("mode"), 8, 32)
			err = root.MkdirAll(filepath.Dir(name), 0o755)
			err = errors.Join(err, root.WriteFile(name, []byte(r.body), 0o644))
			if mode != 0 {
				err = errors.Join(err, root.Chmod(name, fs.FileMode(mode)))
			}
			answer = apitypes.FileInfo{Size: int64(len(r.body))}
		case "GET/files/tar":
			var archive bytes.Buffer
			packTree(t, &archive, filepath.Join(dir, name))
			w.Write(archive.Bytes())
			return
		case "PUT/files/tar":
			err = unpackTree(root, name, tar.NewReader(strings.NewReader(r.body)))
			answer = apitypes.FileTree{}
		case "PUT/files/symlink":
			root.Remove(name)
			err = root.Symlink(q.Get("target"), name)
		default:
			t.Errorf("request %s", r.what)
		}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			refuse(w, 404, apitypes.CodeNoFile, fmt.Sprintf("%q: no such file or directory", name))
		case err != nil:
			refuse(w, 409, apitypes.CodeFileOperation, err.Error())
		case answer == nil:
			w.WriteHeader(http.StatusNoContent)
		default:
			send(w, answer)
		}
	})
}

// packTree packs the content of dir as a daemon does.
func packTree(t *testing.T, w io.Writer, dir string) {
	t.Helper()
	archive := tar.NewWriter(w)
	dir, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	err = filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		if info.Mode().Type() == fs.ModeNamedPipe {
			return archive.WriteHeader(&tar.Header{Typeflag: tar.TypeXGlobalHeader, PAXRecords: map[string]string{apitypes.LeftOutRecord: "fifo " + name}})
		}
		target, _ := os.Readlink(path)
		h, err := tar.FileInfoHeader(info, target)
		if err != nil {
			return err
		}
		h.Name = name
		if err := archive.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
			return err
		}
		content, err := os.ReadFile(path)
		if err == nil {
			_, err = archive.Write(content)
		}
		return err
	})
	if err := errors.Join(err, archive.Close()); err != nil {
		t.Error(err)
	}
}

// unpackTree unpacks into a directory as a daemon does.
func unpackTree(root *os.Root, dir string, archive *tar.Reader) error {
	for {
		h, err := archive.Next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		name := filepath.Join(dir, h.Name)
		if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeDir:
			if err = root.Mkdir(name, 0o700); err == nil {
				err = root.Chmod(name, fs.FileMode(h.Mode))
			} else if errors.Is(err, fs.ErrExist) {
				err = nil
			}
		case tar.TypeSymlink:
			root.Remove(name)
			err = root.Symlink(h.Linkname, name)
		default:
			var content []byte
			if content, err = io.ReadAll(archive); err == nil {
				err = errors.Join(root.WriteFile(name, content, 0o600), root.Chmod(name, fs.FileMode(h.Mode)))
			}
		}
		if err != nil {
			return err
		}
	}
}

// plant creates files below dir from lines "d/ MODE", "f MODE CONTENT" and "l -> TARGET".
func plant(t *testing.T, dir string, lines ...string) {
	t.Helper()
	for _, line := range lines {
		f := strings.Fields(line)
		path := filepath.Join(dir, f[0])
		mode, _ := strconv.ParseUint(f[1], 8, 32)
		err := os.MkdirAll(filepath.Dir(path), 0o755)
		switch {
		case f[1] == "->":
			err = errors.Join(err, os.Symlink(f[2], path))
		case strings.HasSuffix(f[0], "/"):
			err = errors.Join(err, os.MkdirAll(path, 0o755), os.Chmod(path, fs.FileMode(mode)))
		default:
			err = errors.Join(err, os.WriteFile(path, []byte(f[2]), 0o644), os.Chmod(path, fs.FileMode(mode)))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// planted describes the files below dir in the form that plant takes.
func planted(t *testing.T, dir string) string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		info, err := e.Info()
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, path)
		switch info.Mode().Type() {
		case fs.ModeDir:
			lines = append(lines, fmt.Sprintf("%s/ %o", name, info.Mode().Perm()))
		case fs.ModeSymlink:
			target, _ := os.Readlink(path)
			lines = append(lines, name+" -> "+target)
		default:
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			lines = append(lines, fmt.Sprintf("%s %o %s", name, info.Mode().Perm(), text))
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
	return strings.Join(lines, ", ")
}

// TestCopyLikeDocker: both directions have the same rules for where a copy lands. SRC has tree/, file
// and link; DST has there/, taken and to-there -> there.
func TestCopyLikeDocker(t *testing.T) {
	const file, tree = "755 F", "a 640 A, e/ 700, l -> ../nowhere, sub/ 711, sub/b 600 B"
	in := func(dir string) string { // the tree below dir
		return dir + "/ 750, " + dir + "/" + strings.ReplaceAll(tree, ", ", ", "+dir+"/")
	}
	for _, c := range []struct {
		from, to string
		want     string // the new files at the destination, or "!" and a part of the refusal
	}{
		{"file", ".", "file " + file},
		{"file", "..", "../file " + file},
		{"file", "x", "x " + file},
		{"file", "./x", "x " + file},
		{"file", "ABS/x", "x " + file},
		{"file", "ABS", "file " + file},
		{"file", "there", "there/file " + file},
		{"file", "there/", "there/file " + file},
		{"file", "there/.", "there/file " + file},
		{"file", "there/x", "there/x " + file},
		{"file", "to-there", "there/file " + file}, // TestDownloadFollowsNoLink has the way down
		{"file", "taken", "taken " + file},
		{"file", "none/", "!no such directory"},
		{"file", "none/x", "!no directory"},
		{"file", "taken/", "!not a directory"},
		{"file/", ".", "!not a directory"},
		{"file/.", ".", "!not a directory"},
		{"tree", "none", in("none")},
		{"tree", "none/", in("none")},
		{"tree/", "none", in("none")},
		{"tree/.", "none", in("none")},
		{"tree", ".", in("tree")},
		{"tree/", ".", in("tree")},
		{"tree/.", ".", tree},
		{"tree/sub/..", ".", in("tree")},
		{"tree", "there", in("there/tree")},
		{"tree/.", "there", "there/" + strings.ReplaceAll(tree, ", ", ", there/")},
		{"tree", "to-there", in("there/tree")},
		{"file", "to-there/x", "there/x " + file},
		{"tree", "taken", "!so a directory cannot be copied there"},
		{"tree", "none/x", "!no directory"},
		{"link", ".", "link -> file"},
		{"link", "x", "x -> file"},
		{"-L link", "x", "x " + file},
		{"tree-link", ".", "tree-link -> tree"},
		{"tree-link/", "x", in("x")},
		{"tree-link/.", "x", in("x")},
		{"-L tree-link", "x", in("x")},
		{"nowhere", "x", "x -> none"},
		{"-L nowhere", "x", "!"},
		{"none", "x", "!no such file"},
	} {
		for _, down := range []bool{true, false} {
			if down && c.to == "to-there" {
				continue
			}
			source, dest := t.TempDir(), t.TempDir()
			plant(t, source, "w/tree/ 750", "w/tree/sub/ 711", "w/tree/a 640 A", "w/tree/sub/b 600 B", "w/tree/l -> ../nowhere", "w/tree/e/ 700",
				"w/file 755 F", "w/link -> file", "w/tree-link -> tree", "w/nowhere -> none")
			plant(t, dest, "w/there/ 755", "w/taken 644 old", "w/to-there -> there")
			args := append([]string{"cp"}, strings.Fields(c.from)...)
			from := &args[len(args)-1]
			to := strings.ReplaceAll(c.to, "ABS", filepath.Join(dest, "w"))
			v := newInvocation(t)
			var d *fakeDaemon
			if down {
				d = newFileDaemon(t, source)
				t.Chdir(filepath.Join(dest, "w"))
				*from = "s:" + *from
			} else {
				d = newFileDaemon(t, dest)
				t.Chdir(filepath.Join(source, "w"))
				to = "s:" + strings.ReplaceAll(c.to, "ABS", "/w")
			}
			status := d.callWith(v, append(args, to)...)
			got := planted(t, dest)
			if rule, refused := strings.CutPrefix(c.want, "!"); refused {
				if line := v.stderr.String(); status != 125 || !strings.Contains(line, rule) || strings.Count(line, "\n") != 1 || got != "w/ 755, w/taken 644 old, w/there/ 755, w/to-there -> there" {
					t.Errorf("cp %s %s: status %d, %q, %s", c.from, c.to, status, line, got)
				}
				continue
			}
			want := []string{"w/ 755", "w/there/ 755", "w/to-there -> there"}
			if c.to != "taken" {
				want = append(want, "w/taken 644 old")
			}
			for line := range strings.SplitSeq(c.want, ", ") {
				want = append(want, strings.TrimPrefix("w/"+line, "w/../"))
			}
			lines := strings.Split(got, ", ")
			slices.Sort(lines)
			slices.Sort(want)
			if status != 0 || v.stderr.Len() != 0 || !slices.Equal(lines, want) {
				t.Errorf("cp %s %s, down %v: status %d, %q\n%q, want\n%q", c.from, c.to, down, status, v.stderr.String(), lines, want)
			}
		}
	}
}

// TestCopyDash: a file is bytes, a directory a tar stream.
func TestCopyDash(t *testing.T) {
	dir := t.TempDir()
	plant(t, dir, "w/tree/ 750", "w/tree/sub/ 711", "w/tree/a 640 A", "w/tree/l -> a", "w/link -> tree/a")
	d := newFileDaemon(t, dir)
	for _, from := range []string{"s:tree/a", "s:link"} {
		if status, v := d.call("cp", from, "-"); status != 0 || v.stdout.String() != "A" {
			t.Errorf("%s: status %d, %q, %q", from, status, v.stdout.String(), v.stderr.String())
		}
	}
	status, packed := d.call("cp", "s:tree", "-")
	if status != 0 {
		t.Fatalf("status %d, %q", status, packed.stderr.String())
	}
	var names []string
	for r := tar.NewReader(bytes.NewReader(packed.stdout.Bytes())); ; {
		h, err := r.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, fmt.Sprintf("%s %o%s", h.Name, h.Mode, h.Linkname))
	}
	if got := strings.Join(names, ", "); got != "tree/ 750, tree/a 640, tree/l 777a, tree/sub/ 711" {
		t.Errorf("packed %s", got)
	}
	var compressed bytes.Buffer
	z := gzip.NewWriter(&compressed)
	if _, err := z.Write(packed.stdout.Bytes()); err != nil || z.Close() != nil {
		t.Fatal(err)
	}
	plant(t, dir, "w/zipped/ 755")
	unzip := newInvocation(t)
	unzip.Stdin = &compressed
	if status := d.callWith(unzip, "cp", "-", "s:zipped"); status != 0 || !strings.HasPrefix(planted(t, filepath.Join(dir, "w/zipped")), "tree/ 750, tree/a 640 A") {
		t.Errorf("status %d, %q", status, unzip.stderr.String())
	}
	// And back, into an existing directory.
	plant(t, dir, "w/new/ 755")
	v := newInvocation(t)
	v.Stdin = &packed.stdout
	if status := d.callWith(v, "cp", "--json", "-", "s:new"); status != 0 || v.stdout.String() != `{"files":1,"directories":2,"symlinks":1,"bytes":1,"skipped":0}`+"\n" {
		t.Errorf("status %d, %q, %q", status, v.stdout.String(), v.stderr.String())
	}
	if got := planted(t, filepath.Join(dir, "w/new")); got != "tree/ 750, tree/a 640 A, tree/l -> a, tree/sub/ 711" {
		t.Errorf("unpacked %s", got)
	}
	for to, want := range map[string]string{"s:x": "", "s:new": "must be a tar stream", "s:none/x": "no directory", "s:none/": "no such directory"} {
		v := newInvocation(t)
		v.Stdin = strings.NewReader("piped")
		if status := d.callWith(v, "cp", "-", to); (status == 0) != (want == "") || !strings.Contains(v.stderr.String(), want) {
			t.Errorf("%s: status %d, %q", to, status, v.stderr.String())
		}
	}
	if text, err := os.ReadFile(filepath.Join(dir, "w/x")); string(text) != "piped" {
		t.Errorf("%q, %v", text, err)
	}
}

// TestCopyTarStaysInside: names of a tar stream do not lead above the destination.
func TestCopyTarStaysInside(t *testing.T) {
	dir := t.TempDir()
	plant(t, dir, "w/in/ 755")
	d := newFileDaemon(t, dir)
	var stream bytes.Buffer
	w := tar.NewWriter(&stream)
	for _, name := range []string{"../a", "/b", "x/../../../c"} {
		if err := errors.Join(w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Typeflag: tar.TypeReg, Size: 1}), second(w.Write([]byte("x")))); err != nil {
			t.Fatal(err)
		}
	}
	w.Close()
	v := newInvocation(t)
	v.Stdin = &stream
	if status := d.callWith(v, "cp", "-", "s:in"); status != 0 || planted(t, dir) != "w/ 755, w/in/ 755, w/in/a 644 x, w/in/b 644 x, w/in/c 644 x" {
		t.Errorf("status %d, %q, %s", status, v.stderr.String(), planted(t, dir))
	}
}

func second[T any](_ T, err error) error { return err }

// TestCopySkips: anything but files, directories and symlinks is reported and skipped.
func TestCopySkips(t *testing.T) {
	dir, here := t.TempDir(), t.TempDir()
	plant(t, dir, "w/d/f 644 x")
	plant(t, here, "u/f 644 x")
	if err := errors.Join(unix.Mkfifo(filepath.Join(dir, "w/d/p"), 0o600), unix.Mkfifo(filepath.Join(here, "u/p"), 0o600)); err != nil {
		t.Fatal(err)
	}
	d := newFileDaemon(t, dir)
	for _, args := range [][]string{{"cp", "s:d", here}, {"cp", filepath.Join(here, "u"), "s:"}} {
		if status, v := d.call(args...); status != 0 || !strings.HasSuffix(v.stderr.String(), "/p: is a fifo, left out\n") {
			t.Errorf("%q: status %d, %q", args, status, v.stderr.String())
		}
	}
	for _, args := range [][]string{{"cp", "s:d/p", here}, {"cp", filepath.Join(here, "u/p"), "s:"}, {"cp", "s:d/f", filepath.Join(here, "u/p")}} {
		if status, v := d.call(args...); status != 125 || !strings.Contains(v.stderr.String(), "is a fifo") {
			t.Errorf("%q: status %d, %q", args, status, v.stderr.String())
		}
	}
}

func TestCopyUsage(t *testing.T) {
	for args, want := range map[string]string{
		"a b": "neither SOURCE nor DESTINATION", "s:a": "DESTINATION is missing: boxd cp SOURCE DESTINATION", "s:a b c": "\"c\": is one argument too many",
		"a/b:c d": "neither", "a@/b:c d": "neither",
	} {
		v := newInvocation(t)
		if status := v.Main(append([]string{"cp"}, strings.Fields(args)...)); status != 125 || !strings.Contains(v.stderr.String(), want) || strings.Count(v.stderr.String(), "\n") != 1 {
			t.Errorf("cp %s: status %d, %q", args, status, v.stderr.String())
		}
	}
}

// TestCopyProgress: the bar counts copied bytes, and is not shown if the content goes to the screen.
func TestCopyProgress(t *testing.T) {
	dir := t.TempDir()
	plant(t, dir, "w/file 644 content")
	d := newFileDaemon(t, dir)
	j := &copier{progress: newInvocation(t).newProgress("copying", 0, plainCount)}
	j.progress.expect(9)
	if err := j.file(t.Context(), tarSink{w: tar.NewWriter(io.Discard)}, "f", 0o644, 7, strings.NewReader("content")); err != nil {
		t.Fatal(err)
	}
	j.progress.end()
	if j.progress.done != 7 || j.progress.total != 9 || j.Bytes != 7 {
		t.Errorf("%d of %d, %d bytes", j.progress.done, j.progress.total, j.Bytes)
	}
	_, tty := openPTY(t)
	v := newInvocation(t)
	v.Stdout, v.Stderr = tty, tty
	if status := d.callWith(v, "cp", "s:file", "-"); status != 0 {
		t.Errorf("status %d", status)
	}
}

// hostileTree answers like a daemon whose session has file names that try to escape.
func hostileTree(t *testing.T, entries ...*tar.Header) func(seen, http.ResponseWriter) {
	var archive bytes.Buffer
	packed := tar.NewWriter(&archive)
	for _, h := range entries {
		if h.Typeflag == tar.TypeReg {
			h.Size, h.Mode = 7, 0o4644
		}
		if err := packed.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Typeflag == tar.TypeReg {
			io.WriteString(packed, "content")
		}
	}
	packed.Close()
	return func(r seen, w http.ResponseWriter) {
		switch {
		case r.what == "GET /v1/sessions/s":
			send(w, apitypes.Session{ID: "s"}) // without a workspace target
		case strings.Contains(r.what, "/files/stat"):
			send(w, apitypes.FileInfo{Name: "d", Type: "dir"})
		default:
			w.Write(archive.Bytes())
		}
	}
}

func TestDownloadStaysInside(t *testing.T) {
	outside := t.TempDir()
	for _, name := range []string{"..", ".", "", "a/../b", "a//b", "../x", "/etc/x"} {
		d := newFakeDaemon(t, hostileTree(t, &tar.Header{Name: name, Typeflag: tar.TypeReg}))
		if status, v := d.call("cp", "s:d", t.TempDir()); status != 125 || !strings.Contains(v.stderr.String(), "impossible name") {
			t.Errorf("%q: status %d, %q", name, status, v.stderr.String())
		}
	}
	// Nor is a symlink followed out of it, whether it exists already or comes from the session.
	file := func() *tar.Header { return &tar.Header{Name: "f", Typeflag: tar.TypeReg} }
	link := func(name, target string) *tar.Header {
		return &tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target}
	}
	d := newFakeDaemon(t, hostileTree(t, link("l", outside), &tar.Header{Name: "l/", Typeflag: tar.TypeDir}, file()))
	if status, v := d.call("cp", "s:d", t.TempDir()); status != 125 || !strings.Contains(v.stderr.String(), "in the way") {
		t.Errorf("symlink and directory: status %d, %q", status, v.stderr.String())
	}
	d = newFakeDaemon(t, hostileTree(t, link("l", outside), &tar.Header{Name: "l/f", Typeflag: tar.TypeReg}))
	if status, v := d.call("cp", "s:d", t.TempDir()); status != 125 {
		t.Errorf("through a symlink: status %d, %q", status, v.stderr.String())
	}
	d = newFakeDaemon(t, hostileTree(t, link("f", outside+"/f"), file()))
	dir := t.TempDir()
	if status, v := d.call("cp", "s:d", dir); status != 0 || planted(t, dir) != "d/ 700, d/f 644 content" {
		t.Errorf("symlink and file: status %d, %q, %s", status, v.stderr.String(), planted(t, dir))
	}
	dir = t.TempDir()
	if err := os.Symlink(outside, filepath.Join(dir, "d")); err != nil {
		t.Fatal(err)
	}
	d = newFakeDaemon(t, hostileTree(t, file()))
	if status, _ := d.call("cp", "s:d", dir); status != 125 {
		t.Errorf("symlink in the way: status %d", status)
	}
	if entries, _ := os.ReadDir(outside); len(entries) != 0 {
		t.Errorf("outside: %v", entries)
	}
}

// TestDownloadFollowsNoLink: a link of the box that an earlier copy has left on the host is not followed by the next
// one, whatever form the destination has, and neither is one below it that leads to a place in the same tree.
func TestDownloadFollowsNoLink(t *testing.T) {
	const refused = "follows none"
	for _, c := range []struct{ link, from, to, refusal string }{
		{"victim", "file", "result", ""},
		{"nowhere", "file", "result", ""},
		{"victim", "file", "./result", ""},
		{"victim", "file", "ABS/result", ""},
		{"victim", "file", "up/result", ""}, // the user's own link to the directory
		{"victim", "link", "result", ""},
		{"victim", "file", "result/", refused},
		{"victim", "tree", "result", "in the way"},
		{"victims", "file", "result", refused},
		{"victims", "file", "result/", refused},
		{"victims", "file", "result/.", refused},
		{"victims", "tree", "result", refused},
		{"victims", "tree/.", "result", refused},
		{"victims", "tree/.", "result/", refused},
		{"result", "file", "result/", refused},
		{"victim", "links/.", ".", ""},
		{"victims", "trees/.", ".", "in the way"},
		{"victims", "trees", "down", "in the way"},
	} {
		source, dest := t.TempDir(), t.TempDir()
		plant(t, source, "w/file 644 new", "w/link -> other", "w/tree/file 644 new", "w/links/result 644 new", "w/trees/result/file 644 new")
		plant(t, dest, "victim 600 kept", "victims/file 600 kept", "w/down/trees/result -> ../../../victims", "up -> w")
		link := map[string]string{"victim": "../victim", "victims": "../victims", "nowhere": "../nowhere", "result": "result"}[c.link]
		plant(t, dest, "w/result -> "+link, "w/up -> .")
		d := newFileDaemon(t, source)
		t.Chdir(filepath.Join(dest, "w"))
		status, v := d.call("cp", "s:"+c.from, strings.ReplaceAll(c.to, "ABS", filepath.Join(dest, "w")))
		got := planted(t, dest)
		if !strings.Contains(got, "victim 600 kept, victims/ 755, victims/file 600 kept") || strings.Contains(got, "nowhere 6") {
			t.Errorf("%+v: the link was followed: %s", c, got)
		}
		line := v.stderr.String()
		if c.refusal == "" && (status != 0 || line != "" || !strings.Contains(got, "w/result 644 new") && !strings.Contains(got, "w/result -> other")) {
			t.Errorf("%+v: status %d, %q, %s", c, status, line, got)
		}
		if c.refusal != "" && (status != 125 || !strings.Contains(line, c.refusal) || strings.Count(line, "\n") != 1 || !strings.Contains(got, "w/result -> "+link)) {
			t.Errorf("%+v: status %d, %q, %s", c, status, line, got)
		}
	}
	// A daemon that leaves out the directory leads no further.
	dest := t.TempDir()
	plant(t, dest, "victims/f 600 kept", "d/l -> ../victims")
	d := newFakeDaemon(t, hostileTree(t, &tar.Header{Name: "l/f", Typeflag: tar.TypeReg}))
	if status, v := d.call("cp", "s:d", dest); status != 125 || !strings.Contains(v.stderr.String(), "in the way") || !strings.Contains(planted(t, dest), "victims/f 600 kept") {
		t.Errorf("through a symlink: status %d, %q, %s", status, v.stderr.String(), planted(t, dest))
	}
}

// TestBrokenCopy: what has arrived of a file that breaks off does not stay under its name.
func TestBrokenCopy(t *testing.T) {
	dir := t.TempDir()
	sink, err := openHostSink(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer sink.close()
	broken := io.MultiReader(strings.NewReader("half"), iotest.ErrReader(io.ErrUnexpectedEOF))
	err = sink.file(t.Context(), "f", 0o644, 8, broken)
	if err == nil || !strings.Contains(err.Error(), "http.max_file") {
		t.Errorf("%v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("%v, %v", left, err)
	}
}
