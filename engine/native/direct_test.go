package native

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/boxd/boxd/internal/fdkind"
	"golang.org/x/sys/unix"
)

func TestDirect(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	open := func(name string, flags int) *os.File {
		f, err := os.OpenFile(name, flags, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	written := open(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	socket, peer := os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "peer")
	defer socket.Close()
	defer peer.Close()
	for _, c := range []struct {
		name string
		file *os.File
		n    int
		want bool
	}{
		{"nothing", nil, 0, false},
		{"a pipe to read", r, 0, true},
		{"a pipe to write", w, 1, true},
		{"/dev/null", open(os.DevNull, os.O_RDWR), 1, true},
		{"a file to read", open(path, os.O_RDONLY), 0, true},
		{"a file to read, as output", open(path, os.O_RDONLY), 1, false},
		{"a file to write, as input", open(path, os.O_RDWR), 0, false},
		{"a log to append to", written, 1, false},
		{"a file to write", open(path, os.O_WRONLY), 2, false},
		{"a socket", socket, 1, false},
		{"another device", open("/dev/zero", os.O_RDONLY), 0, false},
		{"a directory", open("/", os.O_RDONLY|syscall.O_DIRECTORY), 0, false},
	} {
		if got := fdkind.IsPassable(c.file, c.n); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

func TestSameOutput(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	dup := os.NewFile(uintptr(fd), "dup")
	defer dup.Close()
	again, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer again.Close()
	var one, two bytes.Buffer
	for _, c := range []struct {
		name string
		a, b io.Writer
		want bool
	}{
		{"nothing", nil, nil, false},
		{"one buffer", &one, &one, true},
		{"two buffers", &one, &two, false},
		{"one file", f, f, true},
		{"a file and its duplicate", f, dup, true},
		{"a file opened twice", f, again, false},
		{"a file and a buffer", f, &one, false},
		{"what cannot be compared", incomparable{nil}, incomparable{nil}, false},
	} {
		if got := sameOutput(c.a, c.b); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}

type incomparable struct{ parts []byte }

func (incomparable) Write(b []byte) (int, error) { return len(b), nil }
