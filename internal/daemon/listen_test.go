package daemon

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestListenUnixModeAndParents(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b", "s")
	l, err := listenUnix(path, os.Getgid(), 0o660)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode() != os.ModeSocket|0o660 {
		t.Errorf("%v, %v, want a socket with 0660", info.Mode(), err)
	}
	l.Close()
	if _, err := os.Lstat(path); !os.IsNotExist(err) {
		t.Errorf("after Close: %v, want no socket", err)
	}
}

func TestStaleSocketIsReplaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false) // as if it had been killed
	if l, err := listenUnix(path, -1, 0o660); err == nil || !strings.Contains(err.Error(), "is running") {
		t.Errorf("live socket: %v, %v, want a refusal", l, err)
	}
	if _, err := os.Lstat(path); err != nil {
		t.Fatalf("the live socket is gone: %v", err)
	}
	dead.Close()
	l, err := listenUnix(path, -1, 0o660)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}

func TestOnlySocketsAreReplaced(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(file, link); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file, link, dir} {
		if l, err := listenUnix(path, -1, 0o660); err == nil || !strings.Contains(err.Error(), "is no socket") {
			t.Errorf("%s: %v, %v, want a refusal", path, l, err)
		}
	}
	if _, err := listenUnix(filepath.Join(dir, strings.Repeat("x", 120)), -1, 0o660); err == nil || !strings.Contains(err.Error(), "at most 107 bytes") {
		t.Errorf("long path: %v", err)
	}
}

func TestListenTCP(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "127.9.9.9:0", "[::1]:0", "localhost:0"} {
		l, err := listenTCP(addr, false)
		if err != nil {
			if strings.Contains(addr, "::1") {
				continue // a host without IPv6
			}
			t.Errorf("%s: %v", addr, err)
			continue
		}
		l.Close()
	}
	for _, addr := range []string{"0.0.0.0:0", ":0", "[::]:0", "[::ffff:0.0.0.0]:0", "192.0.2.1:0", "", "8080", "127.0.0.1", "127.0.0.1:http:x", "127.0.0.1:70000"} {
		if l, err := listenTCP(addr, false); err == nil {
			l.Close()
			t.Errorf("%q: accepted without authentication", addr)
		} else if strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: %q is not one line", addr, err)
		}
	}
	l, err := listenTCP("0.0.0.0:0", true)
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
}
