package network

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
)

// insideEnv tells the test binary that it is in the namespaces of the tests. It is a directory
// for their files.
const insideEnv = "BOXD_TEST_NETWORK_INSIDE"

func TestMain(m *testing.M) {
	if os.Geteuid() != 0 { // every test skips itself
		testutil.Main(m)
	}
	if os.Getenv(insideEnv) == "" {
		os.Exit(enter())
	}
	if err := world.make(); err != nil {
		fmt.Fprintln(os.Stderr, "making the network of the tests:", err)
		os.Exit(1)
	}
	testutil.MainReaping(m)
}

// enter runs the tests in a new network namespace and a new mount namespace, which changes
// to resolv.conf need, and returns their exit status.
func enter() int {
	dir, err := os.MkdirTemp("", "boxd-network-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = append(os.Environ(), insideEnv+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err = cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return max(exit.ExitCode(), 1)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return 0
}

// patience bounds what should take seconds.
var patience = func() time.Duration {
	if os.Getenv("BOXD_TEST_VM") != "" {
		return 5 * time.Minute
	}
	return time.Minute
}()
