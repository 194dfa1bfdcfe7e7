package rootfs

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

// Host ids of two boxes of the tests, beyond those that boxd leases.
const (
	testBase  = 0x6ffe0000
	otherBase = 0x6fff0000
)

// stateDir is a directory that box processes can search, unlike t.TempDir.
func stateDir(t testing.TB) string {
	t.Helper()
	testutil.RequireRoot(t)
	dir, err := os.MkdirTemp("/tmp", "boxd-rootfs-test-")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	// Not RemoveAll: should a host directory still be mounted there, the tests
	// must not delete it.
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Errorf("left behind: %v", err)
		}
	})
	return dir
}

func testHost(t testing.TB, dir string) *Host {
	t.Helper()
	h, err := OpenHost(filepath.Join(dir, "host"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := h.Close(); err != nil {
			t.Error(err)
		}
	})
	return h
}

func options(base int) Options {
	return Options{IDBase: base, TmpSize: 1 << 20, Hostname: "testbox"}
}

// testBox builds a root that is closed at the end of the test.
func testBox(t testing.TB, h *Host, dir, name string, o Options) *Root {
	t.Helper()
	r, err := h.Build(filepath.Join(dir, name), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// command runs args in new namespaces on r as the given user.
func command(r *Root, base int, user string, args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", append([]string{r.Path()}, args...)...)
	cmd.Env = []string{roleEnv + "=box", userEnv + "=" + user}
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: base, Size: boxIDs}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS | syscall.CLONE_NEWPID | syscall.CLONE_NEWIPC |
			syscall.CLONE_NEWUTS | syscall.CLONE_NEWNET,
		UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true,
		Credential: &syscall.Credential{},
	}
	return cmd
}

// sh runs a shell script in r as root of the box and returns its output.
func sh(t testing.TB, r *Root, base int, script string) string {
	t.Helper()
	out, err := command(r, base, "0 0", "/bin/sh", "-c", script).CombinedOutput()
	if err != nil {
		t.Fatalf("%s\n%s%v", script, out, err)
	}
	return strings.TrimSpace(string(out))
}

var _ = linux.NewUserNS

func TestSmoke(t *testing.T) {
	dir := stateDir(t)
	h := testHost(t, dir)
	r := testBox(t, h, dir, "a", options(testBase))
	t.Log(sh(t, r, testBase, "ls -la / /etc /dev /home/; id; whoami; df; cat /proc/self/mountinfo; hostname; cat /etc/passwd; python3 -V"))
}
