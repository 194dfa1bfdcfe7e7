package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// become makes this process run as a for good. Root is only needed to prepare the directories and
// to start the launcher.
func become(a account) error {
	// The Go runtime changes the IDs of all threads together.
	if err := syscall.Setgroups([]int{a.gid}); err != nil {
		return os.NewSyscallError("setgroups", err)
	}
	if err := syscall.Setresgid(a.gid, a.gid, a.gid); err != nil {
		return os.NewSyscallError("setresgid", err)
	}
	if err := syscall.Setresuid(a.uid, a.uid, a.uid); err != nil {
		return os.NewSyscallError("setresuid", err)
	}
	return nil
}

// renounce gives up every way to more rights than the user of this process has, and keeps other
// processes of that user from reading its memory.
func renounce() error {
	if err := onAllThreads(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1); err != nil {
		return os.NewSyscallError("prctl(PR_SET_NO_NEW_PRIVS)", err)
	}
	if err := onAllThreads(unix.SYS_PRCTL, unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_CLEAR_ALL); err != nil {
		return os.NewSyscallError("prctl(PR_CAP_AMBIENT)", err)
	}
	// Empty the permitted, effective and inheritable sets of all threads, capset(2). A change of user
	// does not empty the inheritable set.
	header := &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var none [2]unix.CapUserData
	err := onAllThreads(unix.SYS_CAPSET, uintptr(unsafe.Pointer(header)), uintptr(unsafe.Pointer(&none[0])))
	runtime.KeepAlive(header)
	runtime.KeepAlive(&none)
	if err != nil {
		return os.NewSyscallError("capset", err)
	}
	// Tokens are in memory: no ptrace(2) and no core dump, prctl(2).
	return os.NewSyscallError("prctl(PR_SET_DUMPABLE)", unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0))
}

// onAllThreads makes a system call on every thread of the process. Later threads inherit its
// effect. It needs a boxd that was built without cgo, as make build does.
func onAllThreads(trap, a1, a2 uintptr) error {
	_, _, errno := syscall.AllThreadsSyscall6(trap, a1, a2, 0, 0, 0, 0)
	if errno != 0 {
		return errno
	}
	return nil
}

// verify checks that become and renounce have worked: every thread has uid and gid and no
// capabilities, and there is no way back.
func verify(uid, gid int) error {
	tasks, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(tasks) == 0 {
		return errors.Join(errors.New("no threads in /proc/self/task: is /proc mounted?"), err)
	}
	for _, path := range tasks {
		text, err := os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread has ended
		}
		if err != nil {
			return err
		}
		if err := verifyThread(string(text), uid, gid); err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	if err := syscall.Setuid(0); err == nil {
		return errors.New("setuid(0) is still possible")
	}
	return nil
}

// verifyThread checks the text of /proc/<pid>/status, proc_pid_status(5).
func verifyThread(status string, uid, gid int) error {
	four := func(id int) string { return strings.TrimSpace(strings.Repeat(strconv.Itoa(id)+"\t", 4)) }
	const none = "0000000000000000"
	want := map[string]string{
		"Uid": four(uid), "Gid": four(gid), "NoNewPrivs": "1",
		"CapInh": none, "CapPrm": none, "CapEff": none, "CapAmb": none,
	}
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(line, ":")
		if wanted, ok := want[key]; ok {
			if value = strings.TrimSpace(value); value != wanted {
				return fmt.Errorf("%s is %q, not %q", key, value, wanted)
			}
			delete(want, key)
		}
	}
	for key := range want {
		return fmt.Errorf("no line %s", key)
	}
	return nil
}

// rawSetgroups sets the supplementary groups of the calling thread only.
func rawSetgroups(gids []uint32) error {
	_, _, errno := unix.RawSyscall(unix.SYS_SETGROUPS, uintptr(len(gids)), uintptr(unsafe.Pointer(unsafe.SliceData(gids))), 0)
	if errno != 0 {
		return os.NewSyscallError("setgroups", errno)
	}
	return nil
}
