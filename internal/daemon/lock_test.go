package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestSecondDaemonIsRefused(t *testing.T) {
	dir := t.TempDir()
	a := account{uid: os.Getuid(), gid: os.Getgid()}
	first, err := lockState(dir, a)
	if err != nil {
		t.Fatal(err)
	}
	second, err := lockState(dir, a)
	if err == nil {
		second.Close()
		t.Fatal("two daemons hold one state directory")
	}
	if want := fmt.Sprintf("process %d:", os.Getpid()); !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), dir) {
		t.Errorf("%v, want %q and the directory in it", err, want)
	}
	first.Close()
	third, err := lockState(dir, a)
	if err != nil {
		t.Fatalf("after the first one: %v", err)
	}
	third.Close()
}

func TestLockIsNoTrap(t *testing.T) {
	a := account{uid: os.Getuid(), gid: os.Getgid()}
	for name, trap := range map[string]func(path string) error{
		"symlink":   func(path string) error { return os.Symlink("/etc/hostname", path) },
		"directory": func(path string) error { return os.Mkdir(path, 0o755) },
	} {
		dir := t.TempDir()
		if err := trap(filepath.Join(dir, "daemon.lock")); err != nil {
			t.Fatal(err)
		}
		if f, err := lockState(dir, a); err == nil {
			f.Close()
			t.Errorf("%s: locked", name)
		}
	}
	dir := t.TempDir()
	if err := syscall.Mkfifo(filepath.Join(dir, "daemon.lock"), 0o600); err != nil {
		t.Fatal(err)
	}
	if f, err := lockState(dir, a); err == nil {
		f.Close()
		t.Error("fifo: locked")
	}
	if _, err := lockState(filepath.Join(dir, "missing"), a); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no directory: %v", err)
	}
}

// If the daemon's user may not enter a directory, the message names it, with the user and the mode.
func TestStateOutOfReach(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	top := t.TempDir()
	if err := errors.Join(os.Chmod(top, 0o755), os.Chmod(filepath.Dir(top), 0o755)); err != nil {
		t.Fatal(err)
	}
	a := account{name: "someone", uid: 61234, gid: 61235}
	d := dirs{state: filepath.Join(top, "deep/er/state"), runtime: filepath.Join(top, "run")}
	if err := d.makeState(true, a); err != nil {
		t.Fatal(err)
	}
	if f, err := lockState(d.state, a); err != nil {
		t.Errorf("within reach: %v", err)
	} else {
		f.Close()
	}
	if err := os.Chmod(filepath.Join(top, "deep"), 0o710); err != nil {
		t.Fatal(err)
	}
	_, err := lockState(d.state, a)
	want := fmt.Sprintf(`state_dir %q: the daemon's user someone (61234) may not enter %q, which has mode 0710: allow it (chmod o+x), or name another --state-dir`, d.state, filepath.Join(top, "deep"))
	if err == nil || err.Error() != want {
		t.Errorf("%v, want %s", err, want)
	}
}

func TestStateAdvice(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{syscall.EROFS, "remount it read-write, or name another --state-dir"},
		{syscall.ENOTDIR, "remove what is in the way, or name another --state-dir"},
		{syscall.EIO, ""},
	} {
		failed := &os.PathError{Op: "mkdir", Path: "/s", Err: c.err}
		if err := adviseState("/s", failed); !errors.Is(err, c.err) || !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%v: %v", c.err, err)
		}
	}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	d := dirs{state: filepath.Join(file, "state"), runtime: filepath.Join(file, "run")}
	if err := d.makeState(false, account{uid: os.Getuid(), gid: os.Getgid()}); !errors.Is(err, syscall.ENOTDIR) || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), "--state-dir") {
		t.Errorf("a file in the way: %v", err)
	}
}
