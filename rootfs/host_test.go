package rootfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

// Host IDs of two boxes in the tests, outside of the range that boxd leases.
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
	// A tmpfs, like /run. Being separate, it shows what the tests left.
	if err := unix.Mount("boxd-test", dir, "tmpfs", 0, "mode=711"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := os.ReadDir(dir)
		if len(left) > 0 || err != nil {
			t.Errorf("left in the state directory: %v, %v", left, err)
		}
		// Not RemoveAll: if a directory of the host is still mounted there, the tests
		// must not delete its content.
		if err := errors.Join(linux.Unmount(dir, unix.MNT_DETACH), os.Remove(dir)); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func testHost(t testing.TB, dir string) *Host {
	t.Helper()
	// Keep a copy of /etc, like launchers: making one takes a tenth of a second.
	h, err := OpenHost(filepath.Join(dir, "host"), filepath.Join(testutil.DefaultStateDir, "etc"))
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

// output runs cmd with a pipe that belongs to the box, so that opening
// /dev/stdout works, and returns what it wrote.
func output(t testing.TB, cmd *exec.Cmd, base int) ([]byte, error) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := w.Chown(base, base); err != nil {
		t.Fatal(err)
	}
	cmd.Stdout, cmd.Stderr = w, w
	err = cmd.Start()
	w.Close()
	if err != nil {
		return nil, err
	}
	out, readErr := io.ReadAll(r)
	return out, errors.Join(cmd.Wait(), readErr)
}

// sh runs a shell script in r as root of the box and returns its output.
func sh(t testing.TB, r *Root, base int, script string) string {
	t.Helper()
	out, err := output(t, command(r, base, "0 0", "/bin/sh", "-c", script), base)
	if err != nil {
		t.Fatalf("%s\n%s%v", script, out, err)
	}
	return strings.TrimSpace(string(out))
}

// fails runs a script as root of the box that must not succeed, and returns its
// output.
func fails(t testing.TB, r *Root, base int, script string) string {
	t.Helper()
	out, err := command(r, base, "0 0", "/bin/sh", "-c", script).CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() == 125 {
		t.Errorf("%s: %v, want it to fail\n%s", script, err, out)
	}
	return string(out)
}

// mountTable returns the mounts of the test's namespace, as a sorted list without IDs.
func mountTable(t testing.TB) []string {
	t.Helper()
	info, err := os.ReadFile("/proc/thread-self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var list []string
	for line := range strings.Lines(string(info)) {
		if f := strings.Fields(line); len(f) > 5 {
			list = append(list, strings.Join(f[3:6], " "))
		}
	}
	slices.Sort(list)
	return list
}

func TestOpenHostFailure(t *testing.T) {
	dir := stateDir(t)
	before := mountTable(t)
	for _, root := range []string{"/proc/self/nothing", "/proc"} { // no /etc in either
		if _, err := buildHost(filepath.Join(dir, "host"), "", root, false); err == nil {
			t.Errorf("host below %s: no error", root)
		}
	}
	if _, err := OpenHost(dir, ""); !errors.Is(err, fs.ErrExist) {
		t.Errorf("existing directory: %v", err)
	}
	if after := mountTable(t); !slices.Equal(before, after) {
		t.Errorf("mounts left: %q, were %q", after, before)
	}
}

func TestEtcHoldsNothingSecret(t *testing.T) {
	dir := stateDir(t)
	r := testBox(t, testHost(t, dir), dir, "a", options(testBase))
	for _, name := range []string{"shadow", "gshadow", "shadow-", "passwd-", "sudoers", "ssl/private", "machine-id", "fstab", "pip.conf", "npmrc", "environment", "gitconfig"} {
		if _, err := os.Lstat(r.Path() + "/etc/" + name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("/etc/%s: %v, want that it does not exist", name, err)
		}
	}
	keys, err := filepath.Glob(r.Path() + "/etc/ssh/ssh_host_*")
	if len(keys) > 0 || err != nil {
		t.Errorf("keys of the host: %q, %v", keys, err)
	}
}

// fakeHost makes a small system for cases that the machine's own does not have.
func fakeHost(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for _, dir := range []string{"usr/bin", "etc", "lib"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for path, content := range files {
		path = filepath.Join(root, path)
		mode := fs.FileMode(0o644)
		if content == "secret" {
			mode = 0o640
		}
		os.MkdirAll(filepath.Dir(path), 0o755)
		if err := os.WriteFile(path, []byte(content), mode); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

// TestUmask builds with the strictest umask; modes must not depend on it.
func TestUmask(t *testing.T) {
	dir := stateDir(t)
	defer syscall.Umask(syscall.Umask(0o777))
	r := testBox(t, testHost(t, dir), dir, "a", options(testBase))
	for path, want := range map[string]fs.FileMode{
		"": 0o755, "/etc": 0o755, "/etc/services": 0o644, "/.box/passwd": 0o644, "/../dev/null": 0o666, "/opt": 0o755, "/tmp": 0o777,
	} {
		if info, err := os.Stat(r.Path() + path); err != nil || info.Mode().Perm() != want {
			t.Errorf("%q: %v, %v, want mode %v", path, info.Mode(), err, want)
		}
	}
}
