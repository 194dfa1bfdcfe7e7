package rootfs

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

// The test binary plays two more roles: "launcher" runs the tests again in a
// private mount namespace, and "box" is the first process of a box.
const (
	roleEnv = "BOXD_ROOTFS_TEST_ROLE"
	userEnv = "BOXD_ROOTFS_TEST_USER"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(roleEnv) == "box":
		fmt.Fprintln(os.Stderr, "box:", playBox(os.Args[1], os.Args[2:]))
		os.Exit(125)
	case os.Getenv(roleEnv) == "launcher" || os.Geteuid() != 0:
		testutil.Main(m)
	}
	os.Exit(rerunPrivately())
}

// rerunPrivately runs the tests in their own mount namespace.
func rerunPrivately() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), roleEnv+"=launcher")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	// With CLONE_NEWNS Go makes all mounts private as well.
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	err := cmd.Run()
	if err != nil && cmd.ProcessState == nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

// playBox turns the process, which is in new namespaces, into a process of a box with
// the root file system at root, and executes args. It returns only on failure.
func playBox(root string, args []string) error {
	runtime.LockOSThread()
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"bind root", func() error { return unix.Mount(root, root, "", unix.MS_BIND|unix.MS_REC, "") }},
		{"bind dev", func() error {
			return unix.Mount(filepath.Join(filepath.Dir(root), devName), root+"/dev", "", unix.MS_BIND|unix.MS_REC, "")
		}},
		{"mount proc", func() error { return unix.Mount("proc", root+"/proc", "proc", 0, "") }},
		{"chdir", func() error { return unix.Chdir(root) }},
		{"pivot_root", func() error { return unix.PivotRoot(".", ".") }},
		{"umount", func() error { return unix.Unmount(".", unix.MNT_DETACH) }},
		{"sethostname", func() error { return unix.Sethostname([]byte("testbox")) }},
		{"loopback", func() error { return linux.SetLinkUp("lo") }},
		{"become the user", becomeUser},
		{"drop capabilities", dropCapabilities},
	} {
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	env := []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "HOME=" + HomeDir, "LANG=C.UTF-8"}
	path := args[0]
	if !strings.Contains(path, "/") {
		path = "/usr/bin/" + path
	}
	return unix.Exec(path, args, env)
}

// becomeUser sets the IDs that the test has requested as "UID GID".
func becomeUser() error {
	var uid, gid int
	if _, err := fmt.Sscan(os.Getenv(userEnv), &uid, &gid); err != nil {
		return err
	}
	if uid == 0 && gid == 0 {
		return nil
	}
	if err := unix.Setresgid(gid, gid, gid); err != nil {
		return err
	}
	return unix.Setresuid(uid, uid, uid)
}

// dropCapabilities puts the thread into the state of a command in a box: because of
// no_new_privs, not even root regains capabilities when it executes a program.
func dropCapabilities() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return err
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	return unix.Capset(&header, &none[0])
}
