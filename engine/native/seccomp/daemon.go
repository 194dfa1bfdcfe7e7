package seccomp

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// CompileDaemon returns the filter of boxd serve, as [Compile] returns the filter of boxes.
// The daemon is a single Go program that faces clients: it executes nothing, creates no
// process and no executable memory, and asks the launcher for everything that needs
// privilege. A call that is not on its list fails with ENOSYS, and one with wrong arguments
// with EPERM.
func CompileDaemon() ([]byte, error) { return compile(arch.daemonProgram) }

func (a arch) daemonProgram() []unix.SockFilter {
	return a.assemble(a.spans(daemonCalls()))
}

// daemonCalls looks up the calls of the daemon in the tables of the boxes' policy, which have
// their numbers. It has the form of the arguments of [arch.spans].
func daemonCalls() (allowed, refused []group, byArguments []checkedCall) {
	known := map[string]call{}
	for _, g := range slices.Concat(allowedFiles, allowedProcess, daemonOnly) {
		for _, c := range g.calls {
			known[c.name] = c
		}
	}
	for _, c := range checked {
		known[c.name] = c.call
	}
	find := func(name string) call {
		c, ok := known[name]
		if !ok {
			panic("seccomp: the tables lack " + name)
		}
		return c
	}
	for _, g := range daemonAllowed {
		found := group{why: g.why}
		for name := range strings.FieldsSeq(g.names) {
			found.calls = append(found.calls, find(name))
		}
		allowed = append(allowed, found)
	}
	for _, c := range daemonChecked {
		byArguments = append(byArguments, checkedCall{find(c.name), c.why, c.check})
	}
	return allowed, nil, byArguments
}

// daemonOnly are calls that boxes do not have.
var daemonOnly = []group{{"files", []call{{"openat2", 437, 437}}}}

// daemonAllowed are the calls that the daemon makes with any arguments, by name.
var daemonAllowed = []struct{ why, names string }{
	{"memory", "brk munmap mremap msync madvise mincore mlock munlock"},
	// waitid is for the keeper, which was started before.
	{"threads and signals of this process", `
		futex set_robust_list set_tid_address rseq membarrier gettid getpid getppid arch_prctl sched_yield
		sched_getaffinity restart_syscall exit waitid exit_group rt_sigaction rt_sigprocmask rt_sigreturn
		sigaltstack tgkill getuid geteuid getgid getegid getgroups getrusage getrlimit prlimit64 umask uname
		sysinfo getrandom`},
	{"time", `
		clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday setitimer timer_create
		timer_settime timer_delete`},
	{"waiting", "epoll_create1 epoll_ctl epoll_wait epoll_pwait epoll_pwait2 eventfd2 poll ppoll pselect6 pidfd_open"},
	{"descriptors", `
		read write readv writev pread64 pwrite64 preadv pwritev preadv2 pwritev2 lseek close close_range dup
		dup3 fcntl flock pipe2 splice sendfile copy_file_range memfd_create`},
	{"files, as far as Landlock and their modes allow", `
		openat openat2 fstat newfstatat statx statfs fstatfs faccessat faccessat2 readlinkat getcwd
		getdents64 mkdirat unlinkat renameat renameat2 linkat symlinkat ftruncate fallocate fadvise64
		sync_file_range fsync fdatasync syncfs utimensat fchown fchownat`},
	{"sockets that exist", `
		bind listen accept4 connect shutdown getsockname getpeername getsockopt sendto recvfrom sendmsg
		recvmsg`},
}

// daemonChecked are the calls of the daemon whose arguments decide, by name.
var daemonChecked = []struct {
	name, why string
	check
}{
	{"clone", "threads, no processes", check{
		{[]cond{isNot(0, namespaceFlags, 0)}, eperm},
		{[]cond{is(0, unix.CLONE_THREAD, unix.CLONE_THREAD)}, allow},
		{nil, eperm},
	}},
	{"mmap", "no new executable memory", notExecutable},
	{"mprotect", "no new executable memory", notExecutable},
	{"socket", "TCP, UDP and Unix sockets; the socket table, which names the user of a TCP client; the addresses of the host, which boxes do not reach", check{
		{[]cond{is(0, all, unix.AF_UNIX)}, allow},
		{[]cond{is(0, all, unix.AF_NETLINK), is(2, all, unix.NETLINK_SOCK_DIAG, unix.NETLINK_ROUTE)}, allow},
		{[]cond{isNot(0, all, unix.AF_INET, unix.AF_INET6)}, eafnosupport},
		{[]cond{isNot(1, sockType, unix.SOCK_STREAM, unix.SOCK_DGRAM)}, eperm},
		{[]cond{is(2, all, 0, unix.IPPROTO_TCP, unix.IPPROTO_UDP)}, allow},
		{nil, eprotonosupport},
	}},
	{"socketpair", "Unix sockets", check{
		{[]cond{is(0, all, unix.AF_UNIX)}, allow},
		{nil, eafnosupport},
	}},
	{"setsockopt", "no program for a socket", check{
		{[]cond{is(1, all, unix.SOL_SOCKET), is(2, all, unix.SO_ATTACH_FILTER, unix.SO_ATTACH_BPF, unix.SO_ATTACH_REUSEPORT_CBPF, unix.SO_ATTACH_REUSEPORT_EBPF)}, eperm},
		{nil, allow},
	}},
	{"ioctl", "asking about a pipe or terminal, and the size of a terminal", check{
		{[]cond{is(1, all, unix.TCGETS, unix.TIOCINQ, unix.TIOCGWINSZ, unix.TIOCSWINSZ)}, allow},
		{nil, eperm},
	}},
	{"prctl", "names of threads and mappings", check{
		{[]cond{is(0, all, unix.PR_SET_NAME, unix.PR_GET_NAME, unix.PR_SET_VMA)}, allow},
		{nil, eperm},
	}},
	{"fchmod", "no setuid, no setgid", noSetid(1)},
	{"fchmodat", "no setuid, no setgid", noSetid(2)},
	{"fchmodat2", "no setuid, no setgid", noSetid(2)},
}

var notExecutable = check{
	{[]cond{is(2, unix.PROT_EXEC, unix.PROT_EXEC)}, eperm},
	{nil, allow},
}
