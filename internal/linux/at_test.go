package linux

import (
	"errors"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

func openTemp(t *testing.T) *os.File {
	t.Helper()
	dir, err := os.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { dir.Close() })
	return dir
}

func TestAt(t *testing.T) {
	dir := openTemp(t)
	file, err := CreateAt(dir, "file", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	file.Close()
	for _, err := range []error{SymlinkAt("file", dir, "link"), MknodAt(dir, "fifo", unix.S_IFIFO|0o600, 0), ChmodAt(dir, "file", 0o640)} {
		if err != nil {
			t.Error(err)
		}
	}
	if st, err := StatAt(dir, "file"); err != nil || st.Mode != unix.S_IFREG|0o640 {
		t.Errorf("file: mode %o, %v", st.Mode, err)
	}
	if st, err := StatAt(dir, "link"); err != nil || st.Mode&unix.S_IFMT != unix.S_IFLNK {
		t.Errorf("link: mode %o, %v", st.Mode, err)
	}
	if target, err := ReadlinkAt(dir, "link"); err != nil || target != "file" {
		t.Errorf("link -> %q, %v", target, err)
	}
	other := openTemp(t)
	if err := RenameAt(dir, "link", other, "moved"); err != nil {
		t.Error(err)
	}
	if target, err := ReadlinkAt(other, "moved"); err != nil || target != "file" {
		t.Errorf("moved -> %q, %v", target, err)
	}
	if st, err := Fstatfs(dir); err != nil || st.Bsize == 0 {
		t.Errorf("statfs: block size %d, %v", st.Bsize, err)
	}
}

func TestAtErrors(t *testing.T) {
	dir := openTemp(t)
	if err := SymlinkAt("nowhere", dir, "link"); err != nil {
		t.Fatal(err)
	}
	_, create := CreateAt(dir, "link", 0o600)
	_, readlink := ReadlinkAt(dir, "missing")
	for _, c := range []struct{ err, want error }{
		{create, unix.EEXIST}, // not through the link
		{readlink, unix.ENOENT},
		{SymlinkAt("x", dir, "link"), unix.EEXIST},
		{ChmodAt(dir, "missing", 0o600), unix.ENOENT},
		{RenameAt(dir, "missing", dir, "link"), unix.ENOENT},
	} {
		var path *os.PathError
		if !errors.Is(c.err, c.want) || !errors.As(c.err, &path) {
			t.Errorf("%v, want a PathError with %v", c.err, c.want)
		}
	}
}

func TestOpenPTY(t *testing.T) {
	pts, err := os.Open("/dev/pts")
	if err != nil {
		t.Fatal(err)
	}
	defer pts.Close()
	master, slave, err := OpenPTY(pts)
	if errors.Is(err, unix.EACCES) {
		t.Skip("/dev/pts/ptmx is for root only here (mount option ptmxmode=000)")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	defer slave.Close()
	if _, err := slave.WriteString("hello"); err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 16)
	if n, err := master.Read(buf); err != nil || string(buf[:n]) != "hello" {
		t.Errorf("read %q, %v", buf[:n], err)
	}
}
