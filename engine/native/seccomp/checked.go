package seccomp

import (
	"golang.org/x/sys/unix"
)

// checked are calls whose arguments decide.
var checked = []struct {
	call
	why string
	check
}{
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
}

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

// ordinarySockets gives the errno that the kernel itself would give if the
// family or protocol were not built in. MPTCP is not offered; Go's net package,
// which tries it first, takes EPROTONOSUPPORT for "not here".
var ordinarySockets = check{
	{[]cond{is(0, all, unix.AF_UNIX)}, allow},
	{[]cond{is(0, all, unix.AF_NETLINK), is(2, all, unix.NETLINK_ROUTE)}, allow},
	{[]cond{isNot(0, all, unix.AF_INET, unix.AF_INET6, unix.AF_NETLINK)}, eafnosupport},
	{[]cond{is(0, all, unix.AF_NETLINK)}, eprotonosupport},
	{[]cond{is(1, sockType, unix.SOCK_RAW, unix.SOCK_PACKET)}, eperm},
	{[]cond{isNot(1, sockType, unix.SOCK_STREAM, unix.SOCK_DGRAM)}, eprotonosupport},
	{[]cond{is(2, all, 0, unix.IPPROTO_TCP, unix.IPPROTO_UDP, unix.IPPROTO_ICMP, unix.IPPROTO_ICMPV6)}, allow},
	{nil, eprotonosupport},
}

const (
	setid = unix.S_ISUID | unix.S_ISGID
	// creates is O_CREAT and the bit of O_TMPFILE that is not O_DIRECTORY: the
	// flags with which the mode argument counts. Without them it may be garbage.
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
