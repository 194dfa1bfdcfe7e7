package seccomp

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The test binary plays helper programs: role names which, and whether
// under the filter. It is installed the way the agent does it.
const role = "BOXD_SECCOMP_TEST_ROLE"

func TestMain(m *testing.M) {
	switch r := os.Getenv(role); r {
	case "":
		os.Exit(m.Run())
	case "exec": // be the program in the arguments
		install()
		err := unix.Exec(os.Args[1], os.Args[1:], withoutRole())
		fmt.Fprintln(os.Stderr, "executing:", err)
	case "attacks": // try everything under it
		install()
		runAttacks()
		os.Exit(0)
	case "control": // try the same without it
		runAttacks()
		os.Exit(0)
	case "int80", "x32":
		install()
		foreignCall(r)
		os.Exit(0)
	case "costs":
		measure()
		os.Exit(0)
	}
	os.Exit(1)
}

func withoutRole() []string {
	os.Unsetenv(role)
	return os.Environ()
}

// as prepares the test binary in a role.
func as(t testing.TB, r string, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = append(os.Environ(), role+"="+r)
	return cmd
}

// install puts the filter on all threads of this process, for good.
func install() {
	program, err := Compile()
	if err == nil {
		err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	if err == nil {
		err = installOne(program, unix.SECCOMP_FILTER_FLAG_TSYNC)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "installing the filter:", err)
		os.Exit(1)
	}
}

// installOne installs one program on this thread.
func installOne(program []byte, flags uintptr) error {
	prog := unix.SockFprog{
		Len:    uint16(Instructions(program)),
		Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(program))),
	}
	thread, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return os.NewSyscallError("seccomp", errno)
	}
	if thread != 0 {
		// seccomp(2): with TSYNC, a thread that could not follow is no errno.
		return fmt.Errorf("thread %d has other filters", thread)
	}
	return nil
}
