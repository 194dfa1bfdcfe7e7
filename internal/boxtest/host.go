package boxtest

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/engine"
)

// Workspace makes a directory on the host that belongs to uid and gid, and the
// mount of it at /workspace.
func Workspace(t testing.TB, uid, gid int) (dir string, m engine.Mount) {
	t.Helper()
	dir = t.TempDir()
	if err := errors.Join(os.Chown(dir, uid, gid), os.Chmod(dir, 0o755)); err != nil {
		t.Fatal(err)
	}
	return dir, engine.Mount{Source: dir, Target: engine.WorkspaceTarget}
}

// HostDir makes a directory that any user can reach, with an owner.
func HostDir(t testing.TB, uid, gid int) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "boxd-test-native-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := errors.Join(os.Chown(dir, uid, gid), os.Chmod(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func WantBadMount(t testing.TB, source, target string, err error) {
	t.Helper()
	var bad *engine.FieldError
	if !errors.As(err, &bad) || strings.ContainsAny(err.Error(), "\n\x00") || len(err.Error()) > 500 {
		t.Errorf("mounting %q at %q: %v, want one line that names field, value and rule", source, target, err)
	}
}

// Skill creates a directory with a file that names it, to be mounted at target.
func Skill(t testing.TB, target string) engine.Mount {
	t.Helper()
	dir := HostDir(t, 0, 0)
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "name"), []byte(target+"\n"), 0o644), os.Mkdir(filepath.Join(dir, "sub"), 0o755)); err != nil {
		t.Fatal(err)
	}
	return engine.Mount{Source: dir, Target: target, ReadOnly: true}
}

// WaitUntil waits for what nothing announces.
func WaitUntil(t testing.TB, what string, is func() bool) {
	t.Helper()
	end := time.Now().Add(Patience)
	for pause := time.Millisecond; !is(); pause = min(2*pause, 100*time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after %v", what, Patience)
		}
		time.Sleep(pause)
	}
}

func WantEvent(t testing.TB, b engine.LiveBox, kind engine.EventKind) {
	t.Helper()
	late := time.After(Patience)
	for {
		select {
		case e := <-b.Events():
			if e.Kind == kind && e.Count > 0 {
				return
			}
		case <-late:
			t.Fatalf("no event of kind %q after %v", kind, Patience)
		}
	}
}

// Answering accepts connections of l until the test ends, and answers each line with said + line.
func Answering(t testing.TB, l net.Listener, said string) {
	t.Helper()
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for lines := bufio.NewScanner(c); lines.Scan(); {
					if _, err := io.WriteString(c, said+lines.Text()+"\n"); err != nil {
						return
					}
				}
			}()
		}
	}()
}

func Exchange(t testing.TB, c net.Conn) string {
	t.Helper()
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		t.Fatal(err)
	}
	said, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return said
}

// Hog takes and touches argv[1] MiB at once, says "taken", and waits for the end
// of its stdin.
const Hog = `
import sys
x = bytearray(int(sys.argv[1]) << 20)
for i in range(0, len(x), 4096): x[i] = 1
print("taken", flush=True)
sys.stdin.read()
`

const MiB = 1 << 20

var ProxyAddress = netip.MustParseAddrPort("127.0.0.1:3128")

const Talk = `
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
s.sendall(b"hello\n")
print(s.makefile().readline(), end="")
`

// WholeCommandDies reports whether running out of memory ends all of a command: with
// memory.oom.group, which only cgroup v2 has.
func WholeCommandDies() bool {
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers") // on a hybrid host it is in "unified"
	return err == nil
}

// WantNoWritableRoot checks the reason why there can be no box with a writable root. Where the
// /usr of the machine is an overlay itself, as in the virtual machine, a kernel may be unable to map
// its users; anywhere else the test fails.
func WantNoWritableRoot(t testing.TB, err error) {
	t.Helper()
	var st syscall.Statfs_t
	if err := syscall.Statfs("/usr", &st); err != nil {
		t.Fatal(err)
	}
	const overlay = 0x794c7630 // OVERLAYFS_SUPER_MAGIC of <linux/magic.h>
	if st.Type != overlay {
		t.Fatal(err)
	}
	if !strings.Contains(err.Error(), "cannot be id-mapped") || strings.Contains(err.Error(), "\n") {
		t.Errorf("%v: want one line that says why", err)
	}
}

// WantHostUntouched looks for what the writable root's test does.
func WantHostUntouched(t testing.TB) {
	t.Helper()
	if _, err := os.Stat("/usr/bin/boxd-test-made"); err == nil {
		t.Error("a box wrote to /usr/bin of the host")
	}
	if _, err := os.Stat("/usr/bin/env"); err != nil {
		t.Error("a box removed /usr/bin/env of the host")
	}
}
