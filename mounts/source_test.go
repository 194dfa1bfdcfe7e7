package mounts

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
)

func TestOpenKinds(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	l, err := net.Listen("unix", at("socket"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, err := range []error{
		os.Mkdir(at("dir"), 0o755),
		os.WriteFile(at("file"), nil, 0o644),
		os.Symlink("dir", at("link")),
		os.Symlink("loop", at("loop")),
		os.Symlink("socket", at("link-to-socket")),
		os.Symlink("/proc/self/root", at("link-to-magic")),
		syscall.Mkfifo(at("fifo"), 0o644),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ source, path, want string }{
		{at("dir"), at("dir"), ""},
		{at("dir/."), at("dir"), ""},
		{at("dir/../dir/"), at("dir"), ""},
		{at("link"), at("dir"), ""},
		{at("file"), at("file"), ""},
		{at("nothing"), "", "does not exist"},
		{at("nothing/below"), "", "does not exist"},
		{at("file/below"), "", "passes something that is not a directory"},
		{at("file") + "/", "", "passes something that is not a directory"},
		{at("loop"), "", "too many symlinks"},
		{at("socket"), "", "is a socket, must be a directory or a regular file"},
		{at("link-to-socket"), "", "is a socket"},
		{at("fifo"), "", "is a FIFO"},
		{"/dev/null", "", "is a device"},
		{at("link-to-magic/tmp"), "", "a link of /proc that is not a path"},
		{"/proc/self/cwd", "", "a link of /proc that is not a path"},
		{"relative", "", "must be an absolute path"},
	} {
		s, err := Open(spec.Mount{Source: c.source, Target: "/t"}, nil)
		if c.want != "" {
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%s: %v, want %q", c.source, err, c.want)
			} else {
				checkMessage(t, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.source, err)
			continue
		}
		if s.Path != c.path || s.IsDir != (filepath.Base(c.path) == "dir") || int(s.UID) != os.Geteuid() {
			t.Errorf("%s: opened as %+v", c.source, s)
		}
		s.Close()
	}
}

func TestOpenMissingIsNotExist(t *testing.T) {
	_, err := Open(spec.Mount{Source: "/nothing/here"}, DefaultDeny)
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v, want os.ErrNotExist", err)
	}
}

func TestOpenDeviceNode(t *testing.T) {
	testutil.RequireRoot(t)
	for name, mode := range map[string]uint32{"char": unix.S_IFCHR, "block": unix.S_IFBLK} {
		node := filepath.Join(t.TempDir(), name)
		if err := unix.Mknod(node, mode|0o666, int(unix.Mkdev(1, 3))); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(spec.Mount{Source: node}, nil); err == nil || !strings.Contains(err.Error(), "is a device") {
			t.Errorf("%s device: %v", name, err)
		}
	}
}

func TestOpenRemovedDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	s, err := Open(spec.Mount{Source: dir}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := (Root{}).newSource(s.File, dir, nil); !errors.Is(err, errMoved) {
		t.Errorf("checking a removed directory: %v", err)
	}
}
