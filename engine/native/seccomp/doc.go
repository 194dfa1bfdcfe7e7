// Package seccomp holds the system call policy of a box and turns it into a
// classic BPF program for seccomp(2). It only makes bytes: installing them is
// the agent's work.
//
// The policy is an allow-list, one for all boxes. Its base is the default
// profile of Docker (moby/profiles, seccomp/default_linux.go at commit
// 6e3ef803), for the two supported architectures, x86-64 and arm64, and for a
// process without any capability. What is not on a list does not exist: ENOSYS,
// so that a program written for a newer kernel falls back to what it did before.
// What is refused on purpose is EPERM.
//
// Stricter than the base:
//
//	call                            answer           why
//	any call of another ABI         SIGSYS           int 0x80, x32 and 32-bit ARM reach the kernel past
//	(32-bit x86, x32, 32-bit ARM)                    filters written for 64 bits; an errno would make a
//	                                                 32-bit libc whose exit fails loop for ever
//	unshare, setns, clone of a      EPERM            a nested user namespace hands out capabilities
//	namespace
//	socket, other than AF_UNIX,     EAFNOSUPPORT     AF_ALG, AF_VSOCK, AF_PACKET, AF_TIPC … are attack
//	AF_INET, AF_INET6, AF_NETLINK                    surface, some of it loaded on demand
//	socket, AF_INET and AF_INET6    EPERM            packets past the stack (also SOCK_PACKET, which
//	of type SOCK_RAW, SOCK_PACKET                    turns AF_INET into AF_PACKET)
//	socket, protocols other than    EPROTONOSUPPORT  SCTP, DCCP, L2TP, SMC … are modules loaded on demand
//	TCP, UDP, ICMP
//	socket, AF_NETLINK other than   EPROTONOSUPPORT  getaddrinfo and if_nameindex need NETLINK_ROUTE;
//	NETLINK_ROUTE                                    netfilter, crypto, xfrm … are attack surface
//	ioctl TIOCSTI, TIOCLINUX        EPERM            typing into the terminal of the caller; compared in
//	                                                 the low 32 bits as the kernel does (CVE-2019-10063)
//	ioctl TIOCSETD                  EPERM            line disciplines are modules loaded on demand
//	chmod, fchmod, fchmodat,        EPERM            a file in a mounted host directory belongs to that
//	fchmodat2, creat, open, openat,                  directory's owner: a setuid file made in the box
//	mknod, mknodat with mode 06000                   would be a setuid file of that owner on the host
//	openat2                         ENOSYS           its mode lies in memory
//	mknod, mknodat of a device      EPERM            the kernel refuses it too, except whiteouts
//	io_uring_*                      EPERM            does its work out of the filter's sight
//	keyctl, add_key, request_key    EPERM            keyrings are not namespaced
//	modify_ldt                      EPERM            only 16-bit programs need it
//	adjtimex, clock_adjtime         EPERM            the clock belongs to the host
//
// Looser than one may expect, with reasons:
//
//   - clone3 is allowed, because the agent starts commands with it
//     (CLONE_INTO_CGROUP) and commands inherit its filter. Its flags lie in memory,
//     where no filter sees them, so new namespaces are not this package's to
//     forbid: user.max_user_namespaces of a box is 0, and the others need
//     CAP_SYS_ADMIN.
//   - ptrace, process_vm_readv and process_vm_writev are allowed as in Docker:
//     debuggers and strace work in a box. The kernel's ptrace_may_access wants
//     the same user ids and a dumpable target, or CAP_SYS_PTRACE, which nobody in
//     the box has: another user's processes and the agent are out of reach. Since
//     Linux 4.8 the filter sees a call after the tracer, so tracing is no way
//     around it.
//   - mkdir and mkdirat are allowed with any mode, because vfs_mkdir drops the
//     setuid and setgid bits. A directory gets its setgid bit by chmod, which is
//     refused (mkdir -m 2755, install -d -m 2775 and git init --shared fail), or
//     inherits it from its parent, which is the host owner's own choice.
//   - the system call number -1, which a tracer sets to skip a call, is allowed:
//     the kernel does nothing for it, and an errno would replace the result that
//     the tracer has set.
package seccomp
