package seccomp

import (
	"golang.org/x/sys/unix"
)

// call is a system call and its number on amd64 and arm64; -1 if the architecture
// does not have it.
type call struct {
	name         string
	amd64, arm64 int
}

// group is a set of calls that are treated alike for one reason.
type group struct {
	why   string
	calls []call
}

// A verdict is what a filter returns: SECCOMP_RET_* with its data.
type verdict uint32

const (
	allow verdict = unix.SECCOMP_RET_ALLOW
	kill  verdict = unix.SECCOMP_RET_KILL_PROCESS

	// ask leaves the call to the box's supervisor (agent/supervise.c). Without one
	// the kernel answers ENOSYS.
	ask verdict = unix.SECCOMP_RET_USER_NOTIF
	// pretend returns 0 and does nothing.
	pretend verdict = unix.SECCOMP_RET_ERRNO

	eacces          = unix.SECCOMP_RET_ERRNO | verdict(unix.EACCES)
	eafnosupport    = unix.SECCOMP_RET_ERRNO | verdict(unix.EAFNOSUPPORT)
	eagain          = unix.SECCOMP_RET_ERRNO | verdict(unix.EAGAIN)
	einval          = unix.SECCOMP_RET_ERRNO | verdict(unix.EINVAL)
	enomem          = unix.SECCOMP_RET_ERRNO | verdict(unix.ENOMEM)
	enopkg          = unix.SECCOMP_RET_ERRNO | verdict(unix.ENOPKG)
	enoprotoopt     = unix.SECCOMP_RET_ERRNO | verdict(unix.ENOPROTOOPT)
	enosys          = unix.SECCOMP_RET_ERRNO | verdict(unix.ENOSYS)
	eopnotsupp      = unix.SECCOMP_RET_ERRNO | verdict(unix.EOPNOTSUPP)
	eperm           = unix.SECCOMP_RET_ERRNO | verdict(unix.EPERM)
	eprotonosupport = unix.SECCOMP_RET_ERRNO | verdict(unix.EPROTONOSUPPORT)
)

// check is a list of rules. The first rule that matches decides; the last one has no
// conditions.
type check []rule

// rule gives its verdict if all its conditions hold.
type rule struct {
	conds []cond
	verdict
}

// cond compares the low 32 bits of an argument. The kernel takes most arguments
// checked here as ints and drops the rest: if 64 bits were compared, a caller could
// hide a value behind a high bit (CVE-2019-10063). For a pointer both halves count,
// see isNull.
type cond struct {
	arg  int    // 0 … 5
	high bool   // compare the high 32 bits instead
	mask uint32 // applied before comparing
	in   []uint32
	not  bool // the argument must be none of in, instead of one of them
}

// is holds when argument arg, masked, is one of values.
func is(arg int, mask uint32, values ...uint32) cond {
	return cond{arg: arg, mask: mask, in: values}
}

// isNot holds when argument arg, masked, is none of values.
func isNot(arg int, mask uint32, values ...uint32) cond {
	return cond{arg: arg, mask: mask, in: values, not: true}
}

// isNull holds when the pointer in argument arg is NULL.
func isNull(arg int) []cond {
	return []cond{{arg: arg, mask: all, in: []uint32{0}}, {arg: arg, high: true, mask: all, in: []uint32{0}}}
}

// all is the mask of a whole int.
const all = ^uint32(0)
