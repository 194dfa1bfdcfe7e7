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
