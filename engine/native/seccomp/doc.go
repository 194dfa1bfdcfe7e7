// Package seccomp holds the system call policy of a box and turns it into a
// classic BPF program for seccomp(2). It only makes bytes; the agent installs
// them.
//
// The policy is an allow-list, one for all boxes but those that write layers of images
// ([CompileUnpacker]). Its base is the default
// profile of Docker (moby/profiles, seccomp/default_linux.go at commit
// 6e3ef803), for the two supported architectures, x86-64 and arm64, and for a
// process without any capability. A call that is not on the list fails with ENOSYS, so
// that a program written for a newer kernel falls back to an older way. A call that is
// refused on purpose fails with EPERM.
//
// Stricter than the base:
//
//	call                            answer           why
//	any call of another ABI         SIGSYS           int 0x80, x32 and 32-bit ARM reach the kernel past
//	(32-bit x86, x32, 32-bit ARM)                    filters written for 64 bits; an errno would make a
//	                                                 32-bit libc whose exit fails loop forever
//	unshare, setns, clone of a      EPERM            a nested user namespace hands out capabilities
//	namespace
//	socket, other than AF_UNIX,     EAFNOSUPPORT     AF_ALG, AF_VSOCK, AF_PACKET, AF_TIPC … are attack
//	AF_INET, AF_INET6, AF_NETLINK                    surface, some of it loaded on demand
//	socket, AF_INET and AF_INET6    EPERM            packets past the stack (also SOCK_PACKET, which
//	of type SOCK_RAW, SOCK_PACKET                    turns AF_INET into AF_PACKET)
//	socket, protocols other than    EPROTONOSUPPORT  SCTP, DCCP, L2TP, SMC … are modules loaded on demand
//	TCP, UDP
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
// Some calls would make the kernel hold memory that the limits of the box do not count,
// or take from a pool that the whole host shares. They get the answer of a kernel without
// the feature, because programs cope with that. An option is ignored if programs would
// stop when it is refused:
//
//	call                            answer           why
//	seccomp(SET_MODE_FILTER),       EINVAL           programs of a box do not enter the kernel
//	prctl(PR_SET_SECCOMP)
//	setsockopt SO_ATTACH_*          ENOPROTOOPT      the same
//	socket AF_INET, AF_INET6,       counted by the   the queues of a socket are only partly counted;
//	AF_NETLINK                      supervisor       without a supervisor: ENOSYS
//	socket of ICMP                  EACCES           a queue that is not counted; ping needs it
//	setsockopt SO_SNDBUF, SO_RCVBUF ignored          the bound of queues that are not counted
//	setsockopt IP_RECVERR,          ignored          the error queue is not counted; glibc's resolver
//	IPV6_RECVERR                                     insists on the option
//	setsockopt SO_TIMESTAMPING      ENOPROTOOPT      the same queue (see netns.Sysctls for the rest of it)
//	setsockopt UDP_CORK             ENOPROTOOPT      unsent datagrams are not counted
//	setsockopt TCP_MD5SIG, TCP_AO_* ENOPROTOOPT      keys are not counted
//	setsockopt IPV6_FLOWLABEL_MGR   ENOPROTOOPT      4,096 labels for the whole host
//	setxattr and its kin            EOPNOTSUPP       POSIX ACLs are not counted: up to 128 KB for each
//	                                                 directory; user.* goes with them, as the name lies
//	                                                 in memory
//	io_setup and its kin            ENOSYS           fs.aio-max-nr is one counter for the whole host
//	memfd_secret                    ENOSYS           splits the kernel's direct map permanently
//	MAP_HUGETLB, SHM_HUGETLB,       ENOMEM, ENOMEM,  the pool of huge pages is the host's
//	MFD_HUGETLB                     EINVAL
//	MADV_MERGEABLE,                 EINVAL           items of ksmd are not counted; also a side channel
//	PR_SET_MEMORY_MERGE
//	pipe2 O_NOTIFICATION_PIPE       ENOPKG           its pages, up to 64 KB, are not counted
//	prctl(PR_SCHED_CORE)            EINVAL           makes the host leave sibling processors idle
//	fcntl F_SETLEASE                EAGAIN           a lease holds up an open on the host for 45 s
//	fcntl F_OFD_SETLK and its kin   EINVAL           locks are not counted, and those of an open file
//	                                                 outlive its descriptors, where the launcher does not
//	                                                 see them; kernels before 3.15 answer this
//	setrlimit, prlimit64 of         ignored          at 1 the kernel writes no core and starts no program
//	RLIMIT_CORE                                      for one; at 0 it starts the program of a
//	                                                 core_pattern that is a pipe. With the former limit
//	                                                 asked for in the same call: EPERM
//
// Looser than one may expect, with reasons:
//
//   - clone3 is allowed, because the agent starts commands with it
//     (CLONE_INTO_CGROUP) and commands inherit its filter. Its flags lie in memory,
//     where no filter sees them. So new namespaces are forbidden by other means:
//     user.max_user_namespaces of a box is 0, and the other kinds need
//     CAP_SYS_ADMIN.
//   - ptrace, process_vm_readv and process_vm_writev are allowed as in Docker:
//     debuggers and strace work in a box. The kernel's ptrace_may_access wants
//     the same user ids and a dumpable target, or CAP_SYS_PTRACE, which no process
//     in the box has: another user's processes and the agent are out of reach. Since
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
