// Command probe confines itself as boxd serve does and tries what an attacker would try who has
// taken over the daemon. For each attempt it prints what must refuse it, with which error, and
// how it ended. With "control" it makes the harmless attempts without being confined.
package main

import (
	"context"
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

// attempt must fail when confined. Before that it must succeed, unless it needs a privilege or
// would do harm.
type attempt struct {
	name     string
	want     refusal
	harmless bool
	do       func() error
}

// refusal says what refuses an attempt, Landlock or the filter, and with which error.
type refusal struct {
	landlock bool
	errno    syscall.Errno
}

// Landlock refuses files with EACCES. The filter refuses a call that is not on its list with
// ENOSYS, unlike the kernel's own EPERM, and a call with bad arguments with the other errors.
var (
	byLandlock = refusal{true, unix.EACCES}
	unlisted   = refusal{false, unix.ENOSYS}
	argument   = refusal{false, unix.EPERM}
	family     = refusal{false, unix.EAFNOSUPPORT}
	protocol   = refusal{false, unix.EPROTONOSUPPORT}
)

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

// attempts returns the attempts on a directory that belongs to the process, inside, and on one
// that does not, outside. Both contain "file", and inside has a "link" to outside.
func attempts(inside, outside string) []attempt {
	var siginfo [128]byte
	page := uintptr(os.Getpagesize())
	return []attempt{
		// The user may open these files, so their modes are not what refuses it.
		{"open /etc/passwd", byLandlock, true, open("/etc/passwd", os.O_RDONLY)},
		{"open /", byLandlock, true, open("/", os.O_RDONLY)},
		{"read outside", byLandlock, true, open(outside+"/file", os.O_RDONLY)},
		{"write outside", byLandlock, true, open(outside+"/file", os.O_WRONLY)},
		{"create outside", byLandlock, true, open(outside+"/new", os.O_CREATE|os.O_WRONLY)},
		{"list outside", byLandlock, true, open(outside, os.O_RDONLY)},
		{"through a link", byLandlock, true, open(inside+"/link/file", os.O_RDONLY)},
		{"through ..", byLandlock, true, open(inside+"/../"+filepath.Base(outside)+"/file", os.O_RDONLY)},
		{"through /proc/self/root", byLandlock, true, open("/proc/self/root"+outside+"/file", os.O_RDONLY)},
		{"rename out", byLandlock, true, func() error { return os.Rename(inside+"/away", outside+"/away") }},
		{"remove outside", byLandlock, true, func() error { return os.Remove(outside + "/victim") }},
		{"truncate outside", unlisted, true, func() error { return os.Truncate(outside+"/file", 0) }},
		{"device inside", unlisted, false, func() error { return unix.Mknod(inside+"/dev", unix.S_IFCHR|0o600, 0x103) }},
		{"fifo inside", unlisted, true, func() error { return unix.Mkfifo(inside+"/fifo", 0o600) }},
		{"setuid inside", argument, true, func() error { return os.Chmod(inside+"/file", 0o600|os.ModeSetuid) }},
		{"execute", unlisted, false, func() error { return syscall.Exec(outside+"/program", []string{"program"}, nil) }},
		{"start a process", argument, true, func() error {
			p, err := os.StartProcess(outside+"/program", []string{"program"}, &os.ProcAttr{})
			if err == nil {
				_, err = p.Wait()
			}
			return err
		}},
		{"fork", argument, false, call(unix.SYS_CLONE, uintptr(unix.SIGCHLD))},
		{"clone3", unlisted, false, call(unix.SYS_CLONE3, 0, 0)},
		{"unshare user", unlisted, false, call(unix.SYS_UNSHARE, unix.CLONE_NEWUSER)},
		{"setns", unlisted, false, call(unix.SYS_SETNS, ^uintptr(0), 0)},
		{"mount", unlisted, false, call(unix.SYS_MOUNT, 0, 0, 0, 0, 0)},
		{"fsopen", unlisted, false, call(unix.SYS_FSOPEN, 0, 0)},
		{"open_tree", unlisted, false, call(unix.SYS_OPEN_TREE, ^uintptr(0), 0, 0)},
		{"chroot", unlisted, false, call(unix.SYS_CHROOT, 0)},
		{"pivot_root", unlisted, false, call(unix.SYS_PIVOT_ROOT, 0, 0)},
		{"open_by_handle_at", unlisted, false, call(unix.SYS_OPEN_BY_HANDLE_AT, 0, 0, 0)},
		{"ptrace", unlisted, false, call(unix.SYS_PTRACE, unix.PTRACE_TRACEME)},
		{"process_vm_readv", unlisted, false, call(unix.SYS_PROCESS_VM_READV, uintptr(os.Getpid()))},
		{"process_vm_writev", unlisted, false, call(unix.SYS_PROCESS_VM_WRITEV, uintptr(os.Getpid()))},
		{"pidfd_getfd", unlisted, false, call(unix.SYS_PIDFD_GETFD, ^uintptr(0), 0, 0)},
		{"kill", unlisted, true, func() error { return unix.Kill(os.Getppid(), 0) }},
		{"rt_sigqueueinfo", unlisted, false, call(unix.SYS_RT_SIGQUEUEINFO, uintptr(os.Getpid()), 0, uintptr(unsafe.Pointer(&siginfo)))},
		{"pidfd_send_signal", unlisted, false, call(unix.SYS_PIDFD_SEND_SIGNAL, ^uintptr(0), 0, 0, 0)},
		{"bpf", unlisted, false, call(unix.SYS_BPF, ^uintptr(0))},
		{"io_uring", unlisted, false, call(unix.SYS_IO_URING_SETUP, 0, 0)},
		{"perf_event_open", unlisted, false, call(unix.SYS_PERF_EVENT_OPEN, 0, 0, ^uintptr(0), ^uintptr(0), 0)},
		{"userfaultfd", unlisted, false, call(unix.SYS_USERFAULTFD, ^uintptr(0))},
		{"keyctl", unlisted, false, call(unix.SYS_KEYCTL, ^uintptr(0))},
		{"add_key", unlisted, false, call(unix.SYS_ADD_KEY)},
		{"init_module", unlisted, false, call(unix.SYS_INIT_MODULE, 0, 0, 0)},
		{"kexec_load", unlisted, false, call(unix.SYS_KEXEC_LOAD, 0, 0, 0, ^uintptr(0))},
		{"reboot", unlisted, false, call(unix.SYS_REBOOT, 0, 0, 0, 0)},
		{"setuid", unlisted, true, call(unix.SYS_SETUID, uintptr(os.Getuid()))},
		{"capset", unlisted, false, call(unix.SYS_CAPSET, 0, 0)},
		{"personality", unlisted, true, call(unix.SYS_PERSONALITY, 0xffffffff)},
		{"shmget", unlisted, false, call(unix.SYS_SHMGET, 0, 0, 0)},
		{"another filter", unlisted, false, call(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, 0)},
		{"another filter by prctl", argument, false, call(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 0)},
		{"dumpable again", argument, true, call(unix.SYS_PRCTL, unix.PR_SET_DUMPABLE, 1)},
		{"executable memory", argument, true, call(unix.SYS_MMAP, 0, page, unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS, ^uintptr(0), 0)},
		{"memory made executable", argument, false, call(unix.SYS_MPROTECT, 0, page, unix.PROT_READ|unix.PROT_EXEC)},
		{"program for a socket", argument, false, func() error {
			s, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				return err
			}
			defer unix.Close(s)
			return unix.SetsockoptSockFprog(s, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{})
		}},
		{"typing into the terminal", argument, false, call(unix.SYS_IOCTL, 0, unix.TIOCSTI, 0)},
		{"NETLINK_XFRM", family, true, socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_XFRM)},
		{"NETLINK_KOBJECT_UEVENT", family, true, socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_KOBJECT_UEVENT)},
		{"NETLINK_GENERIC", family, true, socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_GENERIC)},
		{"NETLINK_AUDIT", family, false, socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_AUDIT)},
		{"NETLINK_NETFILTER", family, false, socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)},
		{"AF_PACKET", family, false, socket(unix.AF_PACKET, unix.SOCK_RAW, 0)},
		{"AF_ALG", family, false, socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0)},
		{"AF_VSOCK", family, false, socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)},
		{"raw socket", argument, false, socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)},
		// The kernel refuses these two with other errors: ESOCKTNOSUPPORT, and EACCES if at all.
		{"SOCK_RDM", argument, false, socket(unix.AF_INET, unix.SOCK_RDM, 0)},
		{"ping socket", protocol, false, socket(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP)},
		{"SCTP", protocol, false, socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)},
	}
}

// truncate uses a descriptor. Landlock knows truncation by name only since Linux 6.2, so the
// filter refuses that.
func truncate(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	return errors.Join(f.Truncate(0), f.Close())
}

// needed are operations that the daemon always needs.
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
	if err := resolves(); err != nil {
		return fmt.Errorf("resolving a name, for a registry: %w", err)
	}
	if err := socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_SOCK_DIAG)(); err != nil {
		return fmt.Errorf("the socket table: %w", err)
	}
	for range 20 { // more threads than before
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

// resolves asks a server for a name, as pulling an image does. The server's answer is that there is none.
func resolves() error {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer server.Close()
	go func() {
		question := make([]byte, 512)
		for {
			n, from, err := server.ReadFrom(question)
			if err != nil {
				return
			}
			answer := question[:n]
			answer[2], answer[3] = 0x81, 0x83 // an answer, without an error but that there is no such name (RFC 1035, section 4.1.1)
			_, _ = server.WriteTo(answer, from)
		}
	}()
	r := net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
	_, err = r.LookupHost(context.Background(), "registry.example.")
	if e := (*net.DNSError)(nil); errors.As(err, &e) && e.IsNotFound {
		return nil
	}
	return fmt.Errorf("the answer is %v, want that there is no such name", err)
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
		owner := "filter"
		if a.want.landlock {
			owner = "Landlock"
		}
		fmt.Printf("%s\t%s\t%s\t%s\n", a.name, owner, unix.ErrnoName(a.want.errno), result)
	}
}
