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
		cmd := exec.Command(os.Args[1], os.Args[2:]...)
		cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = withoutRole(), os.Stdin, os.Stdout, os.Stderr
		if err := cmd.Run(); err == nil {
			os.Exit(0)
		} else {
			fmt.Fprintln(os.Stderr, "executing:", err)
		}
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
	case "bare int80": // try it without the filter
		foreignCall("int80")
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

// install puts the filter on all threads of this process permanently, and allows every call
// that it reports.
func install() {
	program, err := Compile()
	if err == nil {
		err = unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	}
	var listener int
	if err == nil {
		listener, err = installOne(program, unix.SECCOMP_FILTER_FLAG_TSYNC|unix.SECCOMP_FILTER_FLAG_TSYNC_ESRCH|unix.SECCOMP_FILTER_FLAG_NEW_LISTENER)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "installing the filter:", err)
		os.Exit(1)
	}
	go agreeToAll(listener)
}

// agreeToAll lets every supervised call go on.
func agreeToAll(listener int) {
	// Larger than struct seccomp_notif and seccomp_notif_resp, of whichever kernel.
	type buffer [128]uint64
	for {
		var request, answer buffer
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_RECV, uintptr(unsafe.Pointer(&request))); errno != 0 {
			continue // interrupted, or the caller is gone
		}
		answer[0] = request[0]                                  // id
		answer[2] = unix.SECCOMP_USER_NOTIF_FLAG_CONTINUE << 32 // error, flags
		unix.Syscall(unix.SYS_IOCTL, uintptr(listener), unix.SECCOMP_IOCTL_NOTIF_SEND, uintptr(unsafe.Pointer(&answer)))
	}
}

// installOne installs one program on this thread and returns what the kernel does.
func installOne(program []byte, flags uintptr) (int, error) {
	prog := unix.SockFprog{
		Len:    uint16(Instructions(program)),
		Filter: (*unix.SockFilter)(unsafe.Pointer(unsafe.SliceData(program))),
	}
	result, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&prog)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return 0, os.NewSyscallError("seccomp", errno)
	}
	return int(result), nil
}

// Instructions is the number of instructions in a program. The kernel takes at most 4096
// (BPF_MAXINSNS).
func Instructions(program []byte) int { return len(program) / 8 }
