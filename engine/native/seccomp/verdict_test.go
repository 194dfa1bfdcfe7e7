package seccomp

import (
	"runtime"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	high    = 1 << 32 // a bit that the kernel drops from an int argument
	sigchld = uint64(unix.SIGCHLD)
)

// TestVerdicts tries calls by name on both architectures.
func TestVerdicts(t *testing.T) {
	type args = [6]uint64
	for _, c := range []struct {
		name string
		args args
		want verdict
	}{
		{"read", args{}, allow},
		{"execve", args{}, allow},
		{"clone3", args{}, allow},
		{"ptrace", args{}, allow},
		{"seccomp", args{unix.SECCOMP_GET_ACTION_AVAIL}, allow},
		{"pidfd_open", args{}, allow},
		{"close_range", args{}, allow},
		{"mkdirat", args{0, 0, 0o2755}, allow},

		{"clone", args{sigchld}, allow},
		{"clone", args{unix.CLONE_VM | unix.CLONE_VFORK | sigchld}, allow},
		{"clone", args{0x3d0f00}, allow}, // pthread_create of glibc
		{"clone", args{high | sigchld}, allow},
		{"clone", args{unix.CLONE_NEWUSER}, eperm},
		{"clone", args{unix.CLONE_NEWUSER | sigchld}, eperm},
		{"clone", args{high | unix.CLONE_NEWUSER}, eperm},
		{"clone", args{unix.CLONE_NEWNS}, eperm},
		{"clone", args{unix.CLONE_NEWPID}, eperm},
		{"clone", args{unix.CLONE_NEWNET}, eperm},
		{"clone", args{unix.CLONE_NEWUTS}, eperm},
		{"clone", args{unix.CLONE_NEWIPC}, eperm},
		{"clone", args{unix.CLONE_NEWCGROUP}, eperm},
		{"unshare", args{unix.CLONE_NEWUSER}, eperm},
		{"unshare", args{unix.CLONE_FS}, eperm},
		{"setns", args{}, eperm},

		{"socket", args{unix.AF_UNIX, unix.SOCK_STREAM}, allow},
		{"socket", args{unix.AF_UNIX, unix.SOCK_RAW}, allow}, // the kernel makes it SOCK_DGRAM
		{"socket", args{unix.AF_UNIX, unix.SOCK_SEQPACKET | unix.SOCK_CLOEXEC}, allow},
		{"socket", args{unix.AF_INET, unix.SOCK_STREAM}, ask},
		{"socket", args{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_TCP}, ask},
		{"socket", args{unix.AF_INET, unix.SOCK_STREAM | unix.SOCK_CLOEXEC | unix.SOCK_NONBLOCK}, ask},
		{"socket", args{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_UDP}, ask},
		{"socket", args{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP}, eacces},
		{"socket", args{unix.AF_INET6, unix.SOCK_STREAM}, ask},
		{"socket", args{unix.AF_INET6, unix.SOCK_DGRAM, unix.IPPROTO_ICMPV6}, eacces},
		{"socket", args{high | unix.AF_INET, unix.SOCK_STREAM}, ask},
		{"socket", args{unix.AF_INET, unix.SOCK_RAW, unix.IPPROTO_ICMP}, eperm},
		{"socket", args{unix.AF_INET, unix.SOCK_RAW | unix.SOCK_CLOEXEC}, eperm},
		{"socket", args{unix.AF_INET, high | unix.SOCK_RAW}, eperm},
		{"socket", args{unix.AF_INET6, unix.SOCK_RAW}, eperm},
		{"socket", args{unix.AF_INET, unix.SOCK_PACKET}, eperm},
		{"socket", args{high | unix.AF_INET, unix.SOCK_PACKET}, eperm},
		{"socket", args{unix.AF_INET, unix.SOCK_SEQPACKET}, eprotonosupport},
		{"socket", args{unix.AF_INET, unix.SOCK_DCCP}, eprotonosupport},
		{"socket", args{unix.AF_INET, 0}, eprotonosupport},
		{"socket", args{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP}, eprotonosupport},
		{"socket", args{unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_MPTCP}, eprotonosupport},
		{"socket", args{unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_L2TP}, eprotonosupport},
		{"socket", args{unix.AF_INET, unix.SOCK_DGRAM, high | unix.IPPROTO_L2TP}, eprotonosupport},
		{"socket", args{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_ROUTE}, ask},
		{"socket", args{unix.AF_NETLINK, unix.SOCK_DGRAM | unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE}, ask},
		{"socket", args{unix.AF_NETLINK, unix.SOCK_RAW, high | unix.NETLINK_ROUTE}, ask},
		{"socket", args{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_NETFILTER}, eprotonosupport},
		{"socket", args{unix.AF_NETLINK, unix.SOCK_RAW, high | unix.NETLINK_NETFILTER}, eprotonosupport},
		{"socket", args{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_CRYPTO}, eprotonosupport},
		{"socket", args{unix.AF_NETLINK, unix.SOCK_RAW, unix.NETLINK_XFRM}, eprotonosupport},
		{"socket", args{unix.AF_ALG, unix.SOCK_SEQPACKET}, eafnosupport},
		{"socket", args{high | unix.AF_ALG, unix.SOCK_SEQPACKET}, eafnosupport},
		{"socket", args{unix.AF_VSOCK, unix.SOCK_STREAM}, eafnosupport},
		{"socket", args{high | unix.AF_VSOCK, unix.SOCK_STREAM}, eafnosupport},
		{"socket", args{unix.AF_PACKET, unix.SOCK_RAW}, eafnosupport},
		{"socket", args{unix.AF_TIPC, unix.SOCK_STREAM}, eafnosupport},
		{"socket", args{unix.AF_XDP, unix.SOCK_RAW}, eafnosupport},
		{"socket", args{unix.AF_CAN, unix.SOCK_RAW}, eafnosupport},
		{"socket", args{unix.AF_BLUETOOTH, unix.SOCK_RAW}, eafnosupport},
		{"socket", args{unix.AF_KEY, unix.SOCK_RAW}, eafnosupport},
		{"socket", args{unix.AF_UNSPEC, unix.SOCK_STREAM}, eafnosupport},
		{"socket", args{^uint64(0), unix.SOCK_STREAM}, eafnosupport},
		{"socketpair", args{unix.AF_UNIX, unix.SOCK_STREAM}, allow},
		{"socketpair", args{unix.AF_TIPC, unix.SOCK_STREAM}, eafnosupport},
		{"socketpair", args{high | unix.AF_TIPC, unix.SOCK_STREAM}, eafnosupport},

		{"ioctl", args{0, unix.TCGETS}, allow},
		{"ioctl", args{0, unix.TIOCSCTTY}, allow},
		{"ioctl", args{0, unix.TIOCSTI}, eperm},
		{"ioctl", args{0, high | unix.TIOCSTI}, eperm},
		{"ioctl", args{0, 0xffffffff<<32 | unix.TIOCSTI}, eperm},
		{"ioctl", args{0, unix.TIOCLINUX}, eperm},
		{"ioctl", args{0, high | unix.TIOCLINUX}, eperm},
		{"ioctl", args{0, tiocsetd}, eperm},

		{"personality", args{0}, allow},
		{"personality", args{0xffffffff}, allow},
		{"personality", args{0x20008}, allow},
		{"personality", args{0x0040000}, eperm}, // ADDR_NO_RANDOMIZE
		{"personality", args{high | 0x0400000}, eperm},

		{"chmod", args{0, 0o755}, allow},
		{"chmod", args{0, 0o1777}, allow},
		{"chmod", args{0, high | 0o100644}, allow},
		{"chmod", args{0, 0o4755}, eperm},
		{"chmod", args{0, 0o2755}, eperm},
		{"chmod", args{0, 0o6000}, eperm},
		{"chmod", args{0, high | 0o4755}, eperm},
		{"fchmod", args{0, 0o644}, allow},
		{"fchmod", args{0, 0o4755}, eperm},
		{"fchmodat", args{0, 0, 0o644, 0o6000}, allow},
		{"fchmodat", args{0, 0o6000, 0o4755}, eperm},
		{"fchmodat2", args{0, 0, 0o2755}, eperm},
		{"fchmodat2", args{0, 0, 0o755}, allow},
		{"creat", args{0, 0o644}, allow},
		{"creat", args{0, 0o4755}, eperm},
		{"open", args{0, unix.O_RDONLY, 0o7777}, allow}, // mode is garbage
		{"open", args{0, unix.O_CREAT | unix.O_WRONLY, 0o666}, allow},
		{"open", args{0, unix.O_CREAT | unix.O_WRONLY, 0o4755}, eperm},
		{"open", args{0, high | unix.O_CREAT, high | 0o2755}, eperm},
		{"open", args{0, unix.O_TMPFILE | unix.O_RDWR, 0o4755}, eperm},
		{"openat", args{0, 0, unix.O_RDONLY | unix.O_DIRECTORY, 0o7777}, allow},
		{"openat", args{0, 0, unix.O_CREAT | unix.O_EXCL, 0o600}, allow},
		{"openat", args{0, 0, unix.O_CREAT, 0o4755}, eperm},
		{"openat", args{0, 0, unix.O_CREAT, high | 0o4755}, eperm},
		{"openat", args{0, 0, unix.O_TMPFILE | unix.O_RDWR, 0o600}, allow},
		{"openat", args{0, 0, unix.O_TMPFILE | unix.O_RDWR, 0o2755}, eperm},
		{"openat", args{0, 0, unix.O_TMPFILE &^ unix.O_DIRECTORY, 0o2755}, eperm},
		{"openat2", args{}, enosys},
		{"mknod", args{0, unix.S_IFIFO | 0o644}, allow},
		{"mknod", args{0, unix.S_IFCHR | 0o644}, eperm},
		{"mknod", args{0, high | unix.S_IFBLK | 0o644}, eperm},
		{"mknodat", args{0, 0, unix.S_IFREG | 0o644}, allow},
		{"mknodat", args{0, 0, 0o644}, allow}, // zero is a regular file
		{"mknodat", args{0, 0, unix.S_IFREG | 0o4755}, eperm},
		{"mknodat", args{0, 0, unix.S_IFCHR}, eperm},
		{"mknodat", args{0, 0, unix.S_IFSOCK | 0o777}, allow},

		{"seccomp", args{unix.SECCOMP_SET_MODE_FILTER}, einval},
		{"seccomp", args{high | unix.SECCOMP_SET_MODE_FILTER, 0, 1}, einval},
		{"prctl", args{unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 1}, einval},
		{"prctl", args{high | unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, 1}, einval},
		{"prctl", args{unix.PR_SET_NAME, 1}, allow},
		{"prctl", args{unix.PR_SET_MEMORY_MERGE, 1}, einval},
		{"setsockopt", args{3, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER}, enoprotoopt},
		{"setsockopt", args{3, high | unix.SOL_SOCKET, high | unix.SO_ATTACH_FILTER}, enoprotoopt},
		{"setsockopt", args{3, unix.SOL_SOCKET, unix.SO_ATTACH_BPF}, enoprotoopt},
		{"setsockopt", args{3, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF}, enoprotoopt},
		{"setsockopt", args{3, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_EBPF}, enoprotoopt},
		{"setsockopt", args{3, unix.SOL_TCP, unix.SO_ATTACH_FILTER}, allow},
		{"setsockopt", args{3, unix.SOL_SOCKET, unix.SO_RCVBUF}, pretend},
		{"setsockopt", args{3, unix.SOL_SOCKET, high | unix.SO_SNDBUF}, pretend},
		{"setsockopt", args{3, unix.SOL_SOCKET, unix.SO_REUSEADDR}, allow},
		{"setsockopt", args{3, unix.SOL_IP, unix.IP_RECVERR}, pretend},
		{"setsockopt", args{3, unix.SOL_IPV6, unix.IPV6_RECVERR}, pretend},
		{"setsockopt", args{3, unix.SOL_SOCKET, unix.SO_TIMESTAMPING_OLD}, enoprotoopt},
		{"setsockopt", args{3, unix.SOL_SOCKET, unix.SO_TIMESTAMPING_NEW}, enoprotoopt},
		{"setsockopt", args{3, unix.SOL_SOCKET, unix.SO_TIMESTAMP}, allow},
		{"setsockopt", args{3, unix.SOL_UDP, unix.UDP_CORK}, enoprotoopt},
		{"setsockopt", args{3, unix.SOL_TCP, unix.TCP_MD5SIG}, enoprotoopt},
		{"setsockopt", args{3, unix.SOL_TCP, unix.TCP_MD5SIG_EXT}, enoprotoopt},
		{"setsockopt", args{3, unix.SOL_TCP, 38}, enoprotoopt}, // TCP_AO_ADD_KEY
		{"setsockopt", args{3, unix.SOL_TCP, 42}, enoprotoopt}, // TCP_AO_REPAIR
		{"setsockopt", args{3, unix.SOL_TCP, unix.TCP_CORK}, allow},
		{"setsockopt", args{3, unix.SOL_TCP, unix.TCP_NODELAY}, allow},
		{"setsockopt", args{3, unix.SOL_IPV6, 32}, enoprotoopt}, // IPV6_FLOWLABEL_MGR
		{"setsockopt", args{3, unix.SOL_IPV6, unix.IPV6_V6ONLY}, allow},
		{"io_setup", args{}, enosys},
		{"memfd_secret", args{}, enosys},
		{"memfd_create", args{1, unix.MFD_CLOEXEC}, allow},
		{"memfd_create", args{1, unix.MFD_CLOEXEC | unix.MFD_HUGETLB}, einval},
		{"mmap", args{0, 1, 3, unix.MAP_PRIVATE | unix.MAP_ANON}, allow},
		{"mmap", args{0, 1, 3, unix.MAP_PRIVATE | unix.MAP_ANON | unix.MAP_HUGETLB}, enomem},
		{"shmget", args{0, 4096, 0o1600}, allow},
		{"shmget", args{0, 4096, 0o5600}, enomem},
		{"madvise", args{0, 0, unix.MADV_MERGEABLE}, einval},
		{"madvise", args{0, 0, unix.MADV_DONTNEED}, allow},
		{"fcntl", args{3, unix.F_SETLEASE, unix.F_WRLCK}, eagain},
		{"fcntl", args{3, unix.F_SETLK}, allow},
		{"fcntl", args{3, unix.F_OFD_SETLK}, einval},
		{"fcntl", args{3, high | unix.F_OFD_SETLKW}, einval},
		{"setrlimit", args{unix.RLIMIT_CORE, 1}, pretend},
		{"setrlimit", args{high | unix.RLIMIT_CORE, 1}, pretend},
		{"setrlimit", args{unix.RLIMIT_NOFILE, 1}, allow},
		{"prlimit64", args{0, unix.RLIMIT_CORE, 0, 1}, allow},
		{"prlimit64", args{0, unix.RLIMIT_CORE, 1}, pretend},
		{"prlimit64", args{1 << 20, unix.RLIMIT_CORE, high}, pretend}, // an address whose low half is zero
		{"prlimit64", args{0, unix.RLIMIT_CORE, high, high}, eperm},
		{"prlimit64", args{0, high | unix.RLIMIT_CORE, 1, 1}, eperm},
		{"prlimit64", args{0, unix.RLIMIT_NOFILE, 1, 1}, allow},
		{"pipe2", args{0x1000, unix.O_CLOEXEC | unix.O_NONBLOCK | unix.O_DIRECT}, allow},
		{"pipe2", args{0x1000, unix.O_EXCL | unix.O_CLOEXEC}, enopkg},
		{"pipe2", args{0x1000, high | unix.O_EXCL}, enopkg},
		{"prctl", args{unix.PR_SCHED_CORE, 1}, einval},
		{"prctl", args{high | unix.PR_SCHED_CORE, 1}, einval},
		{"setxattr", args{}, eopnotsupp},
		{"lsetxattr", args{}, eopnotsupp},
		{"fsetxattr", args{}, eopnotsupp},
		{"setxattrat", args{}, eopnotsupp},
		{"getxattr", args{}, allow},
	} {
		tried := 0
		for goarch, a := range arches {
			nr := numberOf(t, a, c.name)
			if nr < 0 {
				continue
			}
			tried++
			if got := verdictOf(t, a, data{nr: uint32(nr), args: c.args}); got != c.want {
				t.Errorf("%s %s%#x: %v, want %v", goarch, c.name, c.args, got, c.want)
			}
		}
		if tried == 0 {
			t.Errorf("%s exists on no architecture", c.name)
		}
	}
}

// TestNumbers tries numbers that are no calls of the native ABI.
func TestNumbers(t *testing.T) {
	for _, c := range []struct {
		goarch string
		d      data
		want   verdict
	}{
		{"amd64", data{arch: unix.AUDIT_ARCH_I386, nr: 20}, kill},
		{"amd64", data{arch: unix.AUDIT_ARCH_I386, nr: 102}, kill}, // socketcall
		{"amd64", data{arch: unix.AUDIT_ARCH_AARCH64, nr: 0}, kill},
		{"amd64", data{nr: x32Bit}, kill},
		{"amd64", data{nr: x32Bit | 39}, kill},
		{"amd64", data{nr: x32Bit | 520}, kill}, // x32's own execve
		{"amd64", data{nr: 334}, allow},         // rseq, the last before the gap
		{"amd64", data{nr: 336}, enosys},
		{"amd64", data{nr: 423}, enosys},
		{"amd64", data{nr: 424}, allow}, // pidfd_send_signal, the first after it
		{"amd64", data{nr: 511}, enosys},
		{"amd64", data{nr: 600}, enosys},
		{"amd64", data{nr: 0x3fffffff}, enosys},
		{"amd64", data{nr: 0xfffffffe}, enosys},
		{"amd64", data{nr: 0xffffffff}, allow},
		{"arm64", data{arch: unix.AUDIT_ARCH_ARM, nr: 20}, kill},
		{"arm64", data{nr: 600}, enosys},
		{"arm64", data{nr: 0xffffffff}, allow},
	} {
		if got := verdictOf(t, arches[c.goarch], c.d); got != c.want {
			t.Errorf("%s arch %#x number %#x: %v, want %v", c.goarch, c.d.arch, c.d.nr, got, c.want)
		}
	}
}

// TestEncoding reads the bytes as the kernel does.
func TestEncoding(t *testing.T) {
	b, err := Compile()
	if err != nil {
		t.Fatal(err)
	}
	want := arches[runtime.GOARCH].program()
	if got := decode(b); !slices.Equal(got, want) || Instructions(b) != len(want) || len(want) > unix.BPF_MAXINSNS {
		t.Errorf("%d instructions in %d bytes, want %d as assembled", Instructions(b), len(b), len(want))
	}
}

// verdictOf runs the program of a; an arch of zero in d means a's own.
func verdictOf(t *testing.T, a arch, d data) verdict {
	t.Helper()
	if d.arch == 0 {
		d.arch = a.audit
	}
	v, _, err := run(a.program(), d)
	if err != nil {
		t.Fatal(err)
	}
	return v
}
