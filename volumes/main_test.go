package volumes

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/boxd/boxd/internal/testutil"
)

// The test binary plays more roles: "private" runs the tests again in their own mount
// namespace, and helper_test.go has the others.
const roleEnv = "BOXD_VOLUMES_TEST_ROLE"

func TestMain(m *testing.M) {
	switch role := os.Getenv(roleEnv); {
	case role == "private" || role == "" && os.Geteuid() != 0:
		testutil.Main(m)
	case role != "":
		playHelper(role, os.Args[1:])
	}
	os.Exit(rerunPrivately())
}

// rerunPrivately runs the tests in their own mount namespace.
func rerunPrivately() int {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), roleEnv+"=private")
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
