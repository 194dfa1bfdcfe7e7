package files

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/boxd/boxd/agent/files/proto"
	"golang.org/x/sys/unix"
)

// Tests that need a box are in test/native.

// do runs an operation in this process.
func do(t *testing.T, stdin io.Reader, args ...string) (string, proto.Reply, error) {
	t.Helper()
	var out bytes.Buffer
	reply, err := run(args, stdin, &out)
	return out.String(), reply, err
}

// chunks returns content as it arrives over stdin, with its end if whole is set.
func chunks(whole bool, parts ...string) io.Reader {
	var b bytes.Buffer
	for _, p := range parts {
		head := make([]byte, proto.ChunkHeader)
		proto.PutHeader(head, len(p))
		b.Write(append(head, p...))
	}
	if whole {
		b.Write(make([]byte, proto.ChunkHeader))
	}
	return &b
}

// tree describes all files below dir: path, mode and content.
func tree(t *testing.T, dir string) string {
	t.Helper()
	var lines []string
	err := filepath.Walk(dir, func(p string, i os.FileInfo, err error) error {
		if err != nil || p == dir {
			return err
		}
		line := p[len(dir)+1:] + " " + i.Mode().String()
		if i.Mode().IsRegular() {
			content, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			line += " " + string(content)
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return strings.Join(lines, "\n")
}

func TestBadArguments(t *testing.T) {
	for _, args := range [][]string{
		nil, {"read"}, {"stat"}, {"stat", "/", "x"}, {"READ", "/", "0", "1"}, {"read", "/", "-1", "1"}, {"read", "/", "0", "x"},
		{"read", "/", "0", "99999999999999999999"}, {"write", "f", "888", "replace", "-"}, {"list", "/", ""}, {"", "/"},
	} {
		if _, _, err := do(t, strings.NewReader(""), args...); !errors.Is(err, unix.EINVAL) {
			t.Errorf("%q: %v, want EINVAL", args, err)
		}
	}
}

func TestWriteIsWholeOrNothing(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, how := range []string{"replace", "append"} {
		for _, c := range []struct {
			content io.Reader
			want    string
		}{
			{chunks(true, "a", "b"), "f -rw-r--r-- ab"},
			{chunks(true), "f -rw-r--r-- "},
			{chunks(false, "a", "b"), ""},
			{chunks(false), ""},
			{strings.NewReader("\x00\x00\x00\x05abc"), ""},
			{strings.NewReader("\xff\xff\xff\xff"), ""},
		} {
			_, _, err := do(t, c.content, "write", "f", "0", how, "-")
			if got := tree(t, mustGetwd(t)); got != c.want || (err == nil) != (c.want != "") {
				t.Errorf("%s: %q, %v, want %q", how, got, err, c.want)
			}
			os.Remove("f")
		}
	}
	if err := os.WriteFile("f", []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, how := range []string{"replace", "append"} {
		if _, _, err := do(t, chunks(false, "new"), "write", "f", "777", how, "-"); err == nil {
			t.Error("content without an end was taken")
		}
		if got := tree(t, mustGetwd(t)); got != "f -rw------- old" {
			t.Errorf("%s: %q", how, got)
		}
	}
}

func mustGetwd(t *testing.T) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// Bytes that another process has appended meanwhile stay.
func TestAppendKeepsOthers(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := os.WriteFile("f", []byte("old "), 0o600); err != nil {
		t.Fatal(err)
	}
	r, w := io.Pipe()
	done := make(chan error)
	go func() {
		_, _, err := do(t, r, "write", "f", "0", "append", "-")
		done <- err
	}()
	if _, err := io.Copy(w, chunks(false, "ours ")); err != nil {
		t.Fatal(err)
	}
	// The pipe is read before the file is written.
	if _, err := w.Write([]byte{0, 0}); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile("f", os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString("theirs"); err != nil {
		t.Fatal(err)
	}
	f.Close()
	w.Close()
	if err := <-done; err == nil {
		t.Error("content without an end was taken")
	}
	if got, _ := os.ReadFile("f"); string(got) != "old ours theirs" {
		t.Errorf("%q", got)
	}
}

// An operation on a FIFO does not wait for the other end, and a process that waits at the
// other end notices nothing.
func TestFIFO(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := unix.Mkfifo("fifo", 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("fifo", "link"); err != nil {
		t.Fatal(err)
	}
	opened := make(chan *os.File)
	go func() {
		f, _ := os.OpenFile("fifo", os.O_WRONLY, 0)
		opened <- f
	}()
	for _, args := range [][]string{
		{"read", "fifo", "0", "9"}, {"read", "link", "0", "9"}, {"write", "fifo", "0", "replace", "-"}, {"write", "link", "0", "append", "-"},
	} {
		_, _, err := do(t, chunks(true, "x"), args...)
		var wrong typeError
		if !errors.As(err, &wrong) || wrong.mode&unix.S_IFMT != unix.S_IFIFO || failure(err).Type != unix.S_IFIFO {
			t.Errorf("%q: %v", args, err)
		}
	}
	for _, args := range [][]string{{"stat", "link"}, {"stat", "fifo"}, {"list", ".", "10"}} {
		if _, _, err := do(t, nil, args...); err != nil {
			t.Errorf("%q: %v", args, err)
		}
	}
	select {
	case <-opened:
		t.Error("somebody who waited for a reader got one")
	case <-time.After(10 * time.Millisecond):
	}
	// Let the waiting goroutine continue.
	f, err := os.OpenFile("fifo", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	(<-opened).Close()
}

func TestFirstNames(t *testing.T) {
	dir := t.TempDir()
	const all = 5000
	for i := range all {
		if err := os.WriteFile(fmt.Sprintf("%s/%04d", dir, (i*2741)%all), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, most := range []int{0, 1, 100, all - 1, all, all + 1} {
		f, err := os.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		names, more, err := firstNames(f, most)
		f.Close()
		if err != nil || len(names) != min(most, all) || more != (most < all) || !slices.IsSorted(names) || most > 0 && names[len(names)-1] != fmt.Sprintf("%04d", len(names)-1) {
			t.Errorf("%d: %d names, %v, %v", most, len(names), more, err)
		}
	}
}

// A tree is removed without following its links.
func TestRemoveTree(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, err := range []error{
		os.MkdirAll("keep/below", 0o755), os.WriteFile("keep/file", nil, 0o644),
		os.MkdirAll("t"+strings.Repeat("/d", 500), 0o755), os.MkdirAll("t/e/f", 0o755), os.WriteFile("t/e/file", nil, 0o644),
		os.Symlink("../keep", "t/link"), os.Symlink("../../keep/below", "t/e/link"), os.Symlink("t", "to-t"),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := do(t, nil, "remove", "t", "-"); !errors.Is(err, unix.ENOTEMPTY) {
		t.Errorf("%v, want ENOTEMPTY", err)
	}
	for _, name := range []string{"to-t", "t/"} {
		if _, _, err := do(t, nil, "remove", name, "recursive"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got, want := tree(t, mustGetwd(t)), "keep drwxr-xr-x\nkeep/below drwxr-xr-x\nkeep/file -rw-r--r-- "; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// The removal ends when the directory that is being removed is moved away.
func TestRemoveMoved(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, dir := range []string{"t/a/b", "other/a"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	parent, err := openPath(".", unix.O_DIRECTORY)
	if err != nil {
		t.Fatal(err)
	}
	w := &walk{dir: parent}
	if w.mount, err = mountOf(parent); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"t", "a"} {
		if err := w.enter(name); err != nil {
			t.Fatal(err)
		}
	}
	defer func() { w.dir.Close() }()
	if err := os.Rename("t/a", "moved"); err != nil {
		t.Fatal(err)
	}
	if err := w.leave(); !errors.Is(err, unix.ESTALE) {
		t.Errorf("%v, want ESTALE", err)
	}
	if got := failure(w.failed("removing", "x", unix.EACCES)); got.Errno != unix.EACCES || got.Step != "removing" || string(got.Path) != "t/x" {
		t.Errorf("%+v", got)
	}
}

func TestFailure(t *testing.T) {
	for _, c := range []struct {
		err  error
		want proto.Failure
	}{
		{errors.New("x"), proto.Failure{Errno: unix.EIO}},
		{unix.ENOSPC, proto.Failure{Errno: unix.ENOSPC}},
		{&os.PathError{Op: "x", Err: unix.ELOOP}, proto.Failure{Errno: unix.ELOOP}},
		{typeError{unix.S_IFIFO | 0o644}, proto.Failure{Errno: unix.EINVAL, Type: unix.S_IFIFO}},
		{typeError{unix.S_IFDIR}, proto.Failure{Errno: unix.EISDIR, Type: unix.S_IFDIR}},
		{io.ErrUnexpectedEOF, proto.Failure{Errno: unix.EIO}},
	} {
		if got := failure(c.err); got.Errno != c.want.Errno || got.Type != c.want.Type || len(got.Path) != 0 {
			t.Errorf("%v: %+v, want %+v", c.err, got, c.want)
		}
	}
}

// TestSymlink: a new symlink replaces a file or a symlink, but not a directory, and is not
// followed.
func TestSymlink(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := errors.Join(os.WriteFile("file", []byte("x"), 0o600), os.Symlink("file", "link"), os.Mkdir("dir", 0o700)); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"file", "link", "new", dir + "/dir/new"} {
		if _, _, err := do(t, nil, "symlink", name, "../to/nowhere"); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if target, err := os.Readlink(name); err != nil || target != "../to/nowhere" {
			t.Errorf("%s: %q, %v", name, target, err)
		}
	}
	for name, want := range map[string]error{"dir": unix.EISDIR, "none/x": unix.ENOENT, "..": unix.EINVAL} {
		if _, _, err := do(t, nil, "symlink", name, "x"); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", name, err, want)
		}
	}
	if entries, err := os.ReadDir("."); len(entries) != 4 || err != nil {
		t.Errorf("left over: %v, %v", entries, err)
	}
}

func TestMkdirMode(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, c := range []struct {
		args, name string
		want       os.FileMode
	}{
		{"a 0 -", "a", 0o755}, {"b 750 -", "b", 0o750}, {"c/d 700 parents", "c/d", 0o700}, {"c/d 711 parents", "c", 0o755},
		{"b 700 parents", "b", 0o750}, // it was there
	} {
		if _, _, err := do(t, nil, append([]string{"mkdir"}, strings.Fields(c.args)...)...); err != nil {
			t.Errorf("%s: %v", c.args, err)
		}
		if info, err := os.Stat(c.name); err != nil || info.Mode().Perm() != c.want {
			t.Errorf("%s: %v, %v, want %o", c.args, info, err, c.want)
		}
	}
}
