package seccomp

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// attack is a call that the test really makes. Its arguments are harmless if it is not
// refused, and mostly make it fail for another reason then.
type attack struct {
	name string
	want unix.Errno // 0: must work
	try  func(dir string) error
}

// sys is a system call with up to six plain arguments.
func sys(nr uintptr, args ...uintptr) func(string) error {
	return func(string) error {
		var a [6]uintptr
		copy(a[:], args)
		_, _, errno := unix.RawSyscall6(nr, a[0], a[1], a[2], a[3], a[4], a[5])
		if errno != 0 {
			return errno
		}
		return nil
	}
}

func socket(family, kind, protocol int) func(string) error {
	return func(string) error {
		fd, err := unix.Socket(family, kind, protocol)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
}

// onFile runs fn with the path of an empty file.
func onFile(fn func(path string) error) func(string) error {
	return func(dir string) error {
		path := filepath.Join(dir, "file")
		if err := os.WriteFile(path, nil, 0o644); err != nil {
			return err
		}
		return fn(path)
	}
}

// onSocket runs fn with a UDP socket.
func onSocket(fn func(fd int) error) func(string) error {
	return func(string) error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return fn(fd)
	}
}

func create(flags int, mode uint32) func(string) error {
	return func(dir string) error {
		path := dir
		if flags&unix.O_TMPFILE != unix.O_TMPFILE {
			path = filepath.Join(dir, "created")
			os.Remove(path)
		}
		fd, err := unix.Open(path, flags, mode)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
}

// nowhere is an address that no process has mapped; none is no descriptor.
const (
	nowhere = 1
	none    = ^uintptr(0)
	hi      = 1 << 32
)

var attacks = []attack{
	{"unshare user", unix.EPERM, sys(unix.SYS_UNSHARE, unix.CLONE_NEWUSER|unix.CLONE_VM)},
	{"clone user", unix.EPERM, sys(unix.SYS_CLONE, unix.CLONE_NEWUSER|unix.CLONE_FS)},
	{"clone user, high bit", unix.EPERM, sys(unix.SYS_CLONE, hi|unix.CLONE_NEWUSER|unix.CLONE_FS)},
	{"setns", unix.EPERM, sys(unix.SYS_SETNS, none)},
	{"mount", unix.EPERM, sys(unix.SYS_MOUNT, nowhere, nowhere, nowhere)},
	{"umount2", unix.EPERM, sys(unix.SYS_UMOUNT2, nowhere)},
	{"pivot_root", unix.EPERM, sys(unix.SYS_PIVOT_ROOT, nowhere, nowhere)},
	{"chroot", unix.EPERM, sys(unix.SYS_CHROOT, nowhere)},
	{"move_mount", unix.EPERM, sys(unix.SYS_MOVE_MOUNT, none, nowhere, none, nowhere)},
	{"open_tree", unix.EPERM, sys(unix.SYS_OPEN_TREE, none, nowhere, 1)},
	{"fsopen", unix.EPERM, sys(unix.SYS_FSOPEN, nowhere)},
	{"fsmount", unix.EPERM, sys(unix.SYS_FSMOUNT, none)},
	{"mount_setattr", unix.EPERM, sys(unix.SYS_MOUNT_SETATTR, none, nowhere, 0, nowhere, 32)},
	{"open_by_handle_at", unix.EPERM, sys(unix.SYS_OPEN_BY_HANDLE_AT, none, nowhere)},
	{"io_uring_setup", unix.EPERM, sys(unix.SYS_IO_URING_SETUP, 1, nowhere)},
	{"keyctl", unix.EPERM, sys(unix.SYS_KEYCTL, 0, ^uintptr(2))},
	{"add_key", unix.EPERM, sys(unix.SYS_ADD_KEY, nowhere, nowhere)},
	{"request_key", unix.EPERM, sys(unix.SYS_REQUEST_KEY, nowhere, nowhere)},
	{"bpf", unix.EPERM, sys(unix.SYS_BPF, 9999, nowhere, 16)},
	{"perf_event_open", unix.EPERM, sys(unix.SYS_PERF_EVENT_OPEN, nowhere)},
	{"userfaultfd", unix.EPERM, sys(unix.SYS_USERFAULTFD, 1<<30)},
	{"kexec_load", unix.EPERM, sys(unix.SYS_KEXEC_LOAD, 0, 0, 0, 1<<30)},
	{"init_module", unix.EPERM, sys(unix.SYS_INIT_MODULE, nowhere, 4)},
	{"finit_module", unix.EPERM, sys(unix.SYS_FINIT_MODULE, none)},
	{"delete_module", unix.EPERM, sys(unix.SYS_DELETE_MODULE, nowhere)},
	{"reboot", unix.EPERM, sys(unix.SYS_REBOOT, 0, 0)},
	{"swapoff", unix.EPERM, sys(unix.SYS_SWAPOFF, nowhere)},
	{"acct", unix.EPERM, sys(unix.SYS_ACCT, nowhere)},
	{"quotactl", unix.EPERM, sys(unix.SYS_QUOTACTL, none, nowhere)},
	{"sethostname", unix.EPERM, sys(unix.SYS_SETHOSTNAME, nowhere, 1)},
	{"settimeofday", unix.EPERM, sys(unix.SYS_SETTIMEOFDAY, nowhere)},
	{"clock_settime", unix.EPERM, sys(unix.SYS_CLOCK_SETTIME, 0, nowhere)},
	{"adjtimex", unix.EPERM, sys(unix.SYS_ADJTIMEX, nowhere)},
	{"syslog", unix.EPERM, sys(unix.SYS_SYSLOG, 99)},
	{"pidfd_getfd", unix.EPERM, sys(unix.SYS_PIDFD_GETFD, none)},
	{"kcmp", unix.EPERM, sys(unix.SYS_KCMP, uintptr(os.Getpid()), uintptr(os.Getpid()), 99)},
	{"openat2", unix.ENOSYS, sys(unix.SYS_OPENAT2, none, nowhere, nowhere, 24)},
	{"unknown call", unix.ENOSYS, sys(9999)},

	{"AF_ALG", unix.EAFNOSUPPORT, socket(unix.AF_ALG, unix.SOCK_SEQPACKET, 0)},
	{"AF_ALG, high bit", unix.EAFNOSUPPORT, sys(unix.SYS_SOCKET, hi|unix.AF_ALG, unix.SOCK_SEQPACKET)},
	{"AF_VSOCK", unix.EAFNOSUPPORT, socket(unix.AF_VSOCK, unix.SOCK_STREAM, 0)},
	{"AF_PACKET", unix.EAFNOSUPPORT, socket(unix.AF_PACKET, unix.SOCK_RAW, 0)},
	{"SOCK_PACKET", unix.EPERM, socket(unix.AF_INET, unix.SOCK_PACKET, 0)},
	{"SOCK_RAW", unix.EPERM, socket(unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP)},
	{"SOCK_RAW 6", unix.EPERM, socket(unix.AF_INET6, unix.SOCK_RAW, unix.IPPROTO_ICMPV6)},
	{"netfilter", unix.EPROTONOSUPPORT, socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER)},
	{"tcp", 0, socket(unix.AF_INET, unix.SOCK_STREAM, 0)},
	{"udp 6", 0, socket(unix.AF_INET6, unix.SOCK_DGRAM, 0)},
	{"unix", 0, socket(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)},
	{"rtnetlink", 0, socket(unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE)},

	{"TIOCSTI", unix.EPERM, sys(unix.SYS_IOCTL, none, unix.TIOCSTI)},
	{"TIOCSTI, high bit", unix.EPERM, sys(unix.SYS_IOCTL, none, hi|unix.TIOCSTI)},
	{"TIOCLINUX", unix.EPERM, sys(unix.SYS_IOCTL, none, unix.TIOCLINUX)},
	{"personality", unix.EPERM, sys(unix.SYS_PERSONALITY, 0x0400000)},

	{"chmod u+s", unix.EPERM, onFile(func(p string) error { return unix.Chmod(p, 0o4755) })},
	{"chmod g+s", unix.EPERM, onFile(func(p string) error { return unix.Chmod(p, 0o2755) })},
	{"fchmodat u+s", unix.EPERM, onFile(func(p string) error { return unix.Fchmodat(unix.AT_FDCWD, p, 0o4755, 0) })},
	{"chmod g+s of a directory", unix.EPERM, func(dir string) error { return unix.Chmod(dir, 0o2755) }},
	{"create u+s", unix.EPERM, create(unix.O_CREAT|unix.O_WRONLY, 0o4755)},
	{"create g+s", unix.EPERM, create(unix.O_CREAT|unix.O_WRONLY, 0o2755)},
	{"tmpfile u+s", unix.EPERM, create(unix.O_TMPFILE|unix.O_WRONLY, 0o4755)},
	{"mknod u+s", unix.EPERM, func(dir string) error { return unix.Mknod(filepath.Join(dir, "n"), unix.S_IFREG|0o4755, 0) }},
	{"mknod device", unix.EPERM, func(dir string) error { return unix.Mknod(filepath.Join(dir, "d"), unix.S_IFCHR|0o600, 0x103) }},
	{"mkdir drops setgid", 0, mkdirDropsBits},

	// Only one filter, which disappears with its socket if it is not refused.
	{"attach filter", unix.ENOPROTOOPT, onSocket(func(fd int) error {
		yes := []unix.SockFilter{{Code: unix.BPF_RET | unix.BPF_K, K: 0xffff}}
		return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: 1, Filter: &yes[0]})
	})},
	{"seccomp filter", unix.EINVAL, sys(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, nowhere)},
	{"seccomp filter by prctl", unix.EINVAL, sys(unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, nowhere)},
	{"io_setup", unix.ENOSYS, sys(unix.SYS_IO_SETUP, 0, nowhere)},
	{"memfd_secret", unix.ENOSYS, sys(unix.SYS_MEMFD_SECRET, 1<<30)},
	{"huge pages", unix.ENOMEM, sys(unix.SYS_MMAP, 0, 2<<20, 0, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_HUGETLB, none, 0)},
	{"setxattr", unix.EOPNOTSUPP, onFile(func(p string) error { return unix.Setxattr(p, "user.x", []byte("x"), 0) })},
	{"lease", unix.EAGAIN, onFile(func(p string) error {
		f, err := os.Open(p)
		if err == nil {
			defer f.Close()
			_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK)
		}
		return err
	})},
	{"core limit stays", 0, func(string) error {
		var before, after unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_CORE, &before); err != nil {
			return err
		}
		if err := unix.Setrlimit(unix.RLIMIT_CORE, &unix.Rlimit{Cur: 0, Max: before.Max}); err != nil {
			return err
		}
		if err := unix.Getrlimit(unix.RLIMIT_CORE, &after); err != nil {
			return err
		}
		if os.Getenv(role) == "attacks" && before != after {
			return fmt.Errorf("limit is %v, was %v", after, before)
		}
		return nil
	}},
	{"buffer size stays", 0, onSocket(func(fd int) error {
		before, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
		if err != nil {
			return err
		}
		if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 8192); err != nil {
			return err
		}
		after, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUF)
		if os.Getenv(role) == "attacks" && before != after {
			return fmt.Errorf("size is %d, was %d", after, before)
		}
		return err
	})},
	{"chmod", 0, onFile(func(p string) error { return unix.Chmod(p, 0o1755) })},
	{"create", 0, create(unix.O_CREAT|unix.O_WRONLY, 0o600)},
	{"fifo", 0, func(dir string) error { return unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600) }},
	{"thread", 0, func(string) error { return onNewThread(func() error { return nil }) }},
	{"fork and exec", 0, func(string) error { return exec.Command("/bin/true").Run() }},
}

// mkdirDropsBits is why mkdir needs no check.
func mkdirDropsBits(dir string) error {
	path := filepath.Join(dir, "sub")
	if err := unix.Mkdir(path, 0o6755); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return err
	}
	if st.Mode&setid != 0 {
		return fmt.Errorf("mode is %#o", st.Mode)
	}
	return nil
}

func onNewThread(fn func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with it
		done <- fn()
	}()
	return <-done
}

// runAttacks is a role: it prints the errno of each attack.
func runAttacks() {
	dir := os.Args[1]
	unix.Umask(0)
	for _, a := range attacks {
		fmt.Printf("%s: %s\n", a.name, errnoName(a.try(dir)))
	}
}

func errnoName(err error) string {
	if errno, ok := err.(unix.Errno); ok {
		return unix.ErrnoName(errno)
	}
	return fmt.Sprint(err)
}

func tryAttacks(t *testing.T, r string) map[string]string {
	t.Helper()
	cmd := as(t, r, t.TempDir())
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("role %q: %v", r, err)
	}
	got := map[string]string{}
	for sc := bufio.NewScanner(bytes.NewReader(out)); sc.Scan(); {
		name, errno, _ := strings.Cut(sc.Text(), ": ")
		got[name] = errno
	}
	return got
}

// TestAttacks tries every attack with the filter, and without it to show that the
// filter made the difference.
func TestAttacks(t *testing.T) {
	got, control := tryAttacks(t, "attacks"), tryAttacks(t, "control")
	for _, a := range attacks {
		want := "<nil>"
		if a.want != 0 {
			want = unix.ErrnoName(a.want)
		}
		if got[a.name] != want {
			t.Errorf("%s: %s, want %s", a.name, got[a.name], want)
		}
		if (a.want == unix.EPERM || a.want == unix.ENOPROTOOPT) && os.Geteuid() == 0 && control[a.name] == want {
			t.Errorf("%s: %s without the filter too, so this proves nothing", a.name, want)
		}
	}
}

// TestForeignABI: a call of another ABI ends the process. On a kernel that is built without
// that ABI it does so without the filter as well, but not by SIGSYS.
func TestForeignABI(t *testing.T) {
	if runtime.GOARCH != "amd64" {
		t.Skip("only x86-64 can make calls of another ABI from 64-bit code")
	}
	for _, abi := range []string{"int80", "x32"} {
		t.Run(abi, func(t *testing.T) {
			if abi == "int80" {
				// Some hypervisors pass no interrupt 0x80 on to the kernel: it faults before any filter is asked.
				if out, err := as(t, "bare int80").CombinedOutput(); err != nil && strings.Contains(string(out), "SIGSEGV") {
					t.Skip("int 0x80 faults on this machine without the filter too, so nothing can be tried")
				}
			}
			out, err := as(t, abi).CombinedOutput()
			var status syscall.WaitStatus
			if exit, ok := err.(*exec.ExitError); ok {
				status = exit.Sys().(syscall.WaitStatus)
			}
			if !status.Signaled() || status.Signal() != unix.SIGSYS {
				t.Errorf("%v, want an end by SIGSYS\n%s", err, out)
			}
		})
	}
}

// foreignCall is a role: getpid of another ABI.
func foreignCall(abi string) {
	if abi == "x32" {
		_, _, errno := unix.RawSyscall(x32Bit|39, 0, 0, 0)
		fmt.Println("x32 getpid:", errno)
		return
	}
	// mov eax, 20; int 0x80; ret
	code := []byte{0xb8, 20, 0, 0, 0, 0xcd, 0x80, 0xc3}
	page, err := unix.Mmap(-1, 0, unix.Getpagesize(), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		fmt.Println(err)
		return
	}
	copy(page, code)
	if err := unix.Mprotect(page, unix.PROT_READ|unix.PROT_EXEC); err != nil {
		fmt.Println(err)
		return
	}
	// A func value is a pointer to a word that holds the address of its code.
	entry := unsafe.Pointer(unsafe.SliceData(page))
	closure := unsafe.Pointer(&entry)
	(*(*func())(unsafe.Pointer(&closure)))()
	fmt.Println("int 0x80 returned")
}
