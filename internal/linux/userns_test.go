//go:build amd64 || arm64

package linux

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/testutil"
)

func TestNewUserNSHasTheMap(t *testing.T) {
	testutil.RequireRoot(t)
	ns, err := NewUserNS("1000 1879048192 1\n", "100 1879048193 2\n")
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(ns.Fd()), &st); err != nil || st.Type != unix.NSFS_MAGIC {
		t.Fatalf("file system type %#x, %v: want a namespace", st.Type, err)
	}
	kind, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWUSER {
		t.Fatalf("namespace type %#x, %v: want a user namespace", kind, err)
	}
}

func TestNewUserNSRefusesBadMaps(t *testing.T) {
	testutil.RequireRoot(t)
	for _, bad := range []string{"0 0 0\n", "x", "0 1 2\n1 5 2\n"} {
		if ns, err := NewUserNS(bad, "0 1 1\n"); err == nil {
			ns.Close()
			t.Errorf("uid map %q was accepted", bad)
		}
	}
}

// The trick works only if nothing but NewUserNS sees the zombie.
func TestNewUserNSIsInvisibleToWait(t *testing.T) {
	testutil.RequireRoot(t)
	pid, pidfd, err := cloneZombie(unix.CLONE_NEWUSER)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.Wait4(pid, nil, unix.WNOHANG, nil); err != unix.ECHILD {
		t.Errorf("wait4 of the zombie: %v, want ECHILD", err)
	}
	reapZombie(pidfd)
	if err := unix.Kill(pid, 0); err != unix.ESRCH {
		t.Errorf("the zombie is still there after reaping: %v", err)
	}
}

func BenchmarkNewUserNS(b *testing.B) {
	testutil.RequireRoot(b)
	for b.Loop() {
		ns, err := NewUserNS("1000 1879048192 1\n", "100 1879048193 1\n")
		if err != nil {
			b.Fatal(err)
		}
		ns.Close()
	}
}
