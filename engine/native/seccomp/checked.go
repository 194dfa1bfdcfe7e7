package seccomp

import (
	"golang.org/x/sys/unix"
)

// checkedCall is a call whose arguments decide, and the reason.
type checkedCall struct {
	call
	why string
	check
}

// checked are the calls of boxes whose arguments decide.
var checked = []checkedCall{
	{call{"clone", 56, 220}, "no new namespaces", noNamespaces},
	{call{"socket", 41, 198}, "families, types and protocols of ordinary programs", ordinarySockets},
	{call{"socketpair", 53, 199}, "AF_UNIX has the only useful pairs; AF_TIPC would load a module", check{
		{[]cond{is(0, all, unix.AF_UNIX)}, allow},
		{nil, eafnosupport},
	}},
	{call{"ioctl", 16, 29}, "no typing into a terminal, no line disciplines", check{
		{[]cond{is(1, all, unix.TIOCSTI, unix.TIOCLINUX, tiocsetd)}, eperm},
		{nil, allow},
	}},
	{call{"personality", 135, 92}, "PER_LINUX and PER_LINUX32, also with UNAME26, and asking; as Docker", check{
		{[]cond{is(0, all, 0, 0x8, 0x20000, 0x20008, 0xffffffff)}, allow},
		{nil, eperm},
	}},
	{call{"chmod", 90, -1}, "no setuid, no setgid", noSetid(1)},
	{call{"fchmod", 91, 52}, "no setuid, no setgid", noSetid(1)},
	{call{"fchmodat", 268, 53}, "no setuid, no setgid", noSetid(2)},
	{call{"fchmodat2", 452, 452}, "no setuid, no setgid", noSetid(2)},
	{call{"creat", 85, -1}, "no setuid, no setgid", noSetid(1)},
	{call{"open", 2, -1}, "no setuid, no setgid", noSetidOpen(1)},
	{call{"openat", 257, 56}, "no setuid, no setgid", noSetidOpen(2)},
	{call{"mknod", 133, -1}, "no setuid, no setgid, no devices", noSetidNode(1)},
	{call{"mknodat", 259, 33}, "no setuid, no setgid, no devices", noSetidNode(2)},

	// The following bound the memory that a box can make the kernel hold.
	{call{"setsockopt", 54, 208}, "no programs for the kernel, no queues outside the memory limit", socketOptions},
	{call{"seccomp", 317, 277}, "no programs for the kernel", check{
		{[]cond{is(0, all, unix.SECCOMP_SET_MODE_FILTER)}, einval},
		{nil, allow},
	}},
	{call{"prctl", 157, 167}, "no programs for the kernel; no merging of pages, which the memory limit does not see; no core scheduling, which leaves other processors of the host idle", check{
		{[]cond{is(0, all, unix.PR_SET_SECCOMP, unix.PR_SET_MEMORY_MERGE, unix.PR_SCHED_CORE)}, einval},
		{nil, allow},
	}},
	{call{"madvise", 28, 233}, "no merging of pages", check{
		{[]cond{is(2, all, unix.MADV_MERGEABLE)}, einval},
		{nil, allow},
	}},
	{call{"mmap", 9, 222}, "huge pages come from a pool of the host", check{
		{[]cond{isNot(3, unix.MAP_HUGETLB, 0)}, enomem},
		{nil, allow},
	}},
	{call{"memfd_create", 319, 279}, "huge pages come from a pool of the host", check{
		{[]cond{isNot(1, unix.MFD_HUGETLB, 0)}, einval},
		{nil, allow},
	}},
	{call{"pipe2", 293, 59}, "no cgroup is charged for the pages of a notification pipe, and not all of them are limited for each user (watch_queue_set_size in kernel/watch_queue.c)", check{
		{[]cond{isNot(1, notificationPipe, 0)}, enopkg},
		{nil, allow},
	}},
	{call{"shmget", 29, 194}, "huge pages come from a pool of the host", check{
		{[]cond{isNot(2, shmHugetlb, 0)}, enomem},
		{nil, allow},
	}},
	{call{"fcntl", 72, 25}, "a lease delays whoever opens the file, on the host too; a lock of an open file lives on without a descriptor, where it is not counted", check{
		{[]cond{is(1, all, unix.F_SETLEASE)}, eagain},
		{[]cond{is(1, all, unix.F_OFD_SETLK, unix.F_OFD_SETLKW, unix.F_OFD_GETLK)}, einval},
		{nil, allow},
	}},
	{call{"setrlimit", 160, 164}, "the limit on core dumps protects at one value only, see wire.BoxRlimits", check{
		{[]cond{is(0, all, unix.RLIMIT_CORE)}, pretend},
		{nil, allow},
	}},
	{call{"prlimit64", 302, 261}, "as setrlimit; asking is allowed", check{
		{[]cond{isNot(1, all, unix.RLIMIT_CORE)}, allow},
		{isNull(2), allow},
		{isNull(3), pretend},
		{nil, eperm}, // the former limit is asked for as well, which cannot be pretended
	}},
	{call{"setxattr", 188, 5}, "the memory limit does not see ACLs, and the attribute's name lies in memory", check{{nil, eopnotsupp}}},
	{call{"lsetxattr", 189, 6}, "as setxattr", check{{nil, eopnotsupp}}},
	{call{"fsetxattr", 190, 7}, "as setxattr", check{{nil, eopnotsupp}}},
	{call{"setxattrat", 463, 463}, "as setxattr", check{{nil, eopnotsupp}}},
}

// notificationPipe is O_NOTIFICATION_PIPE of <linux/watch_queue.h>.
const notificationPipe = unix.O_EXCL

// shmHugetlb is SHM_HUGETLB of <linux/shm.h>.
const shmHugetlb = 0o4000

// socketOptions are refused as a kernel without them would, except where programs
// take that for a reason to give up: those options succeed without effect.
var socketOptions = check{
	// Classic and extended BPF programs.
	{option(unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, unix.SO_ATTACH_BPF,
		unix.SO_ATTACH_REUSEPORT_CBPF, unix.SO_ATTACH_REUSEPORT_EBPF), enoprotoopt},
	// The size of a queue that no limit counts: netlink, and errors of any socket.
	// The kernel clamps the requested size as well, so programs cope.
	{option(unix.SOL_SOCKET, unix.SO_SNDBUF, unix.SO_RCVBUF), pretend},
	// ICMP errors go to a queue that no limit counts. glibc's resolver gives up on
	// a name server whose socket refuses this.
	{option(unix.SOL_IP, unix.IP_RECVERR), pretend},
	{option(unix.SOL_IPV6, unix.IPV6_RECVERR), pretend},
	// Time stamps go to the same queue.
	{option(unix.SOL_SOCKET, unix.SO_TIMESTAMPING_OLD, unix.SO_TIMESTAMPING_NEW), enoprotoopt},
	// Datagrams that are put together outside the memory limit.
	{option(unix.SOL_UDP, unix.UDP_CORK), enoprotoopt},
	// Keys that the memory limit does not see.
	{option(unix.SOL_TCP, unix.TCP_MD5SIG, unix.TCP_MD5SIG_EXT, tcpAOAddKey, tcpAODelKey, tcpAOInfo,
		tcpAOGetKeys, tcpAORepair), enoprotoopt},
	// All of the host's users share 4,096 flow labels (net/ipv6/ip6_flowlabel.c).
	{option(unix.SOL_IPV6, ipv6FlowlabelMgr), enoprotoopt},
	{nil, allow},
}

// option holds for setsockopt of one of names at a level.
func option(level uint32, names ...uint32) []cond {
	return []cond{is(1, all, level), is(2, all, names...)}
}

// ipv6FlowlabelMgr is IPV6_FLOWLABEL_MGR of <linux/in6.h>.
const ipv6FlowlabelMgr = 32

// TCP authentication options of <linux/tcp.h>, Linux 6.7.
const (
	tcpAOAddKey = 38 + iota
	tcpAODelKey
	tcpAOInfo
	tcpAOGetKeys
	tcpAORepair
)

// tiocsetd chooses the line discipline of a terminal (ioctl_tty(2)).
const tiocsetd = 0x5423

// namespaceFlags are the CLONE_NEW* flags of clone. CLONE_NEWTIME is not among
// them: its bit belongs to the exit signal there (clone(2)).
const namespaceFlags = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
	unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET

var noNamespaces = check{
	{[]cond{isNot(0, namespaceFlags, 0)}, eperm},
	{nil, allow},
}

// sockType is SOCK_TYPE_MASK of <linux/net.h>: the rest of the type argument is
// SOCK_CLOEXEC and SOCK_NONBLOCK.
const sockType = 0xf

// ordinarySockets answers as a kernel in which the other families and protocols
// are not built in. MPTCP is not offered; Go's net package tries it first and
// understands EPROTONOSUPPORT. An ICMP socket, whose queue no limit counts, is
// refused as by a host without a ping_group_range. The supervisor counts the
// sockets of the other families, because the memory limit covers only part of what
// the kernel holds for them.
var ordinarySockets = check{
	{[]cond{is(0, all, unix.AF_UNIX)}, allow},
	{[]cond{is(0, all, unix.AF_NETLINK), is(2, all, unix.NETLINK_ROUTE)}, ask},
	{[]cond{isNot(0, all, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK)}, eafnosupport},
	{[]cond{is(0, all, unix.AF_NETLINK)}, eprotonosupport},
	{[]cond{is(1, sockType, unix.SOCK_RAW, unix.SOCK_PACKET)}, eperm},
	{[]cond{isNot(1, sockType, unix.SOCK_STREAM, unix.SOCK_DGRAM)}, eprotonosupport},
	{[]cond{is(2, all, 0, unix.IPPROTO_TCP, unix.IPPROTO_UDP)}, ask},
	{[]cond{is(2, all, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6)}, eacces},
	{nil, eprotonosupport},
}

const (
	setid = unix.S_ISUID | unix.S_ISGID
	// creates holds the flags with which the mode argument counts: O_CREAT, and the
	// bit of O_TMPFILE that is not O_DIRECTORY. Without them the mode may be garbage.
	creates = unix.O_CREAT | unix.O_TMPFILE&^unix.O_DIRECTORY
)

func noSetid(modeArg int) check {
	return check{
		{[]cond{isNot(modeArg, setid, 0)}, eperm},
		{nil, allow},
	}
}

// noSetidOpen is noSetid for a call whose mode follows its flags.
func noSetidOpen(flagsArg int) check {
	return check{
		{[]cond{isNot(flagsArg, creates, 0), isNot(flagsArg+1, setid, 0)}, eperm},
		{nil, allow},
	}
}

func noSetidNode(modeArg int) check {
	return check{
		{[]cond{isNot(modeArg, setid, 0)}, eperm},
		{[]cond{is(modeArg, unix.S_IFMT, unix.S_IFCHR, unix.S_IFBLK)}, eperm},
		{nil, allow},
	}
}
