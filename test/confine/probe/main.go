// Command probe confines itself as boxd serve does, tries what a daemon that was taken
// over would try, and prints how each attempt ended. With "control" it tries what is
// harmless of it unconfined.
package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"unsafe"

	"github.com/boxd/boxd/internal/confine"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// attempt is something that must fail once confined, and, unless it needs a privilege or
// would do harm, succeeds before.
type attempt struct {
	name     string
	harmless bool
	do       func() error
}

func call(trap uintptr, args ...uintptr) func() error {
	return func() error {
		var a [6]uintptr
		copy(a[:], args)
		if _, _, errno := unix.Syscall6(trap, a[0], a[1], a[2], a[3], a[4], a[5]); errno != 0 {
			return errno
		}
		return nil
	}
}

func socket(family, typ, protocol int) func() error {
	return func() error {
		fd, err := unix.Socket(family, typ|unix.SOCK_CLOEXEC, protocol)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
}

func open(path string, flags int) func() error {
	return func() error {
		f, err := os.OpenFile(path, flags, 0o600)
		f.Close()
		return err
	}
}

// attempts on a directory that is the process's own and one that is not. Both hold "file",
// and inside is a "link" to outside.
func attempts(inside, outside string) []attempt {
	var siginfo [128]byte
	page := uintptr(os.Getpagesize())
	return []attempt{
		{"open /etc/shadow", false, open("/etc/shadow", os.O_RDONLY)},
		{"open /root", false, open("/root", os.O_RDONLY)},
		{"open /", true, open("/", os.O_RDONLY)},
		{"read outside", true, open(outside+"/file", os.O_RDONLY)},
		{"write outside", true, open(outside+"/file", os.O_WRONLY)},
		{"create outside", true, open(outside+"/new", os.O_CREATE|os.O_WRONLY)},
		{"list outside", true, open(outside, os.O_RDONLY)},
		{"through a link", true, open(inside+"/link/file", os.O_RDONLY)},
		{"through ..", true, open(inside+"/../"+filepath.Base(outside)+"/file", os.O_RDONLY)},
		{"through /proc/self/root", true, open("/proc/self/root"+outside+"/file", os.O_RDONLY)},
		{"rename out", true, func() error { return os.Rename(inside+"/away", outside+"/away") }},
		{"remove outside", true, func() error { return os.Remove(outside + "/victim") }},
		{"truncate outside", true, func() error { return os.Truncate(outside+"/file", 0) }},
		{"device inside", false, func() error { return unix.Mknod(inside+"/dev", unix.S_IFCHR|0o600, 0x103) }},
		{"fifo inside", true, func() error { return unix.Mkfifo(inside+"/fifo", 0o600) }},
		{"setuid inside", true, func() error { return os.Chmod(inside+"/file", 0o600|os.ModeSetuid) }},
		{"execute", false, func() error { return syscall.Exec(outside+"/program", []string{"program"}, nil) }},
		{"start a process", true, func() error {
			p, err := os.StartProcess(outside+"/program", []string{"program"}, &os.ProcAttr{})
			if err == nil {
				_, err = p.Wait()
			}
			return err
		}},
		{"fork", false, call(unix.SYS_CLONE, uintptr(unix.SIGCHLD))},
		{"clone3", false, call(unix.SYS_CLONE3, 0, 0)},
		{"unshare user", false, call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER)},
		{"setns", false, call(unix.SYS_SETNS, ^uintptr(0), 0)},
		{"mount", false, call(unix.SYS_MOUNT, 0, 0, 0, 0, 0)},
		{"fsopen", false, call(unix.SYS_FSOPEN, 0, 0)},
		{"open_tree", false, call(unix.SYS_OPEN_TREE, ^uintptr(0), 0, 0)},
		{"chroot", false, call(unix.SYS_CHROOT, 0)},
		{"pivot_root", false, call(unix.SYS_PIVOT_ROOT, 0, 0)},
		{"open_by_handle_at", false, call(unix.SYS_OPEN_BY_HANDLE_AT, 0, 0, 0)},
		{"ptrace", false, call(unix.SYS_PTRACE, unix.PTRACE_TRACEME)},
		{"process_vm_readv", false, call(unix.SYS_PROCESS_VM_READV, uintptr(os.Getpid()))},
		{"process_vm_writev", false, call(unix.SYS_PROCESS_VM_WRITEV, uintptr(os.Getpid()))},
		{"pidfd_getfd", false, call(unix.SYS_PIDFD_GETFD, ^uintptr(0), 0, 0)},
		{"kill", true, func() error { return unix.Kill(os.Getppid(), 0) }},
		{"rt_sigqueueinfo", false, call(unix.SYS_RT_SIGQUEUEINFO, uintptr(os.Getpid()), 0, uintptr(unsafe.Pointer(&siginfo)))},
		{"pidfd_send_signal", false, call(unix.SYS_PIDFD_SEND_SIGNAL, ^uintptr(0), 0, 0, 0)},
		{"bpf", false, call(unix.SYS_BPF, ^uintptr(0))},
		{"io_uring", false, call(unix.SYS_IO_URING_SETUP, 0, 0)},
		{"perf_event_open", false, call(unix.SYS_PERF_EVENT_OPEN, 0, 0, ^uintptr(0), ^uintptr(0), 0)},
		{"userfaultfd", false, call(unix.SYS_USERFAULTFD, ^uintptr(0))},
		{"keyctl", false, call(unix.SYS_KEYCTL, ^uintptr(0))},
		{"add_key", false, call(unix.SYS_ADD_KEY)},
		{"init_module", false, call(unix.SYS_INIT_MODULE, 0, 0, 0)},
		{"kexec_load", false, call(unix.SYS_KEXEC_LOAD, 0, 0, 0, ^uintptr(0))},
		{"reboot", false, call(unix.SYS_REBOOT, 0, 0, 0, 0)},
		{"setuid", true, call(unix.SYS_SETUID, uintptr(os.Getuid()))},
		{"capset", false, call(unix.SYS_CAPSET, 0, 0)},
		{"personality", true, call(unix.SYS_PERSONALITY, 0xffffffff)},
		{"shmget", false, call(unix.SYS_SHMGET, 0, 0, 0)},
		{"another filter", false, call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, 0)},
		{"another filter by prctl", false, call(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 0)},
		{"dumpable again", true, call(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1)},
		{"executable memory", true, call(unix.SYS_MMAP, 0, page, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uintptr(0), 0)},
		{"memory made executable", false, call(unix.SYS_MPROTECT, 0, page, unix.PROT_READ|unix.PROT_EXEC)},
		{"program for a socket", false, func() error {
			s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(s)
			return unix.SetsockoptSockFprog(s, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{})
		}},
		{"typing into the terminal", false, call(unix.SYS_IOCTL, 0, unix.TIOCSTI, 0)},
		{"AF_NETLINK", true, socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)},
		{"AF_PACKET", false, socket(unix.AF_PACKET, unix.SOCK_RAW, 0)},
		{"AF_ALG", false, socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0)},
		{"AF_VSOCK", false, socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)},
		{"raw socket", false, socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)},
		{"SCTP", false, socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)},
	}
}

// truncate goes by a descriptor: by name Landlock only knows it since Linux 6.2, so the
// filter refuses that.
func truncate(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(0), f.Close())
}

// needed is what the daemon does all the time.
func needed(inside string) error {
	if err := os.WriteFile(inside+"/a", []byte("x"), 0o600); err != nil {
		return err
	}
	if err := errors.Join(os.Mkdir(inside+"/d", 0o700), os.Rename(inside+"/a", inside+"/d/b"), os.Symlink("b", inside+"/d/l"),
		truncate(inside+"/d/b"), os.Chmod(inside+"/d/b", 0o640), os.RemoveAll(inside+"/d")); err != nil {
		return err
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer l.Close()
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "served") })}
	go server.Serve(l)
	answer, err := http.Get("http://" + l.Addr().String())
	if err != nil {
		return err
	}
	defer answer.Body.Close()
	if body, err := io.ReadAll(answer.Body); err != nil || string(body) != "served" {
		return fmt.Errorf("%q, %w", body, err)
	}
	for range 20 { // more threads than there were
		done := make(chan error)
		go func() { done <- linux.OnThrowawayThread(func() error { return nil }) }()
		if err := <-done; err == nil {
			return errors.New("unshare(CLONE_FS) is allowed")
		}
	}
	tasks, err := filepath.Glob("/proc/self/task/*/status")
	if err != nil || len(tasks) < 2 {
		return fmt.Errorf("threads: %v, %w", tasks, err)
	}
	for _, task := range tasks {
		if text, err := os.ReadFile(task); err == nil && !strings.Contains(string(text), "\nSeccomp:\t2\n") {
			return fmt.Errorf("%s: no filter", task)
		}
	}
	return nil
}

func main() {
	role, inside, outside := os.Args[1], os.Args[2], os.Args[3]
	if role == "confined" {
		if _, _, errno := syscall.AllThreadsSyscall(unix.SYS_PRCTL, unix.PR_SET_NO_NEW_PRIVS, 1, 0); errno != 0 {
			fmt.Println("prctl:", errno)
			os.Exit(1)
		}
		abi, err := confine.Daemon([]linux.LandlockPath{{Path: inside, Use: linux.LandlockWrite}, {Path: "/proc"}, {Path: "/no/such"}})
		if err != nil {
			fmt.Println("confining:", err)
			os.Exit(1)
		}
		fmt.Printf("landlock\t%d\n", abi)
		if err := needed(inside); err != nil {
			fmt.Println("needed:", err)
			os.Exit(1)
		}
	}
	for _, a := range attempts(inside, outside) {
		if role == "control" && !a.harmless {
			continue
		}
		result := "done"
		var errno syscall.Errno
		if err := a.do(); errors.As(err, &errno) {
			result = unix.ErrnoName(errno)
		} else if err != nil {
			result = err.Error()
		}
		fmt.Printf("%s\t%s\n", a.name, result)
	}
}
