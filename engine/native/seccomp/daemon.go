package seccomp

import "golang.org/x/sys/unix"

// CompileDaemon returns the filter of boxd serve, as [Compile] returns the filter of boxes.
// The daemon is a single Go program that faces clients: it executes nothing, creates no
// process and no executable memory, and asks the launcher for everything that needs
// privilege. A call that is not on its list fails with ENOSYS, and one with wrong arguments
// with EPERM.
func CompileDaemon() ([]byte, error) { return compile(arch.daemonProgram) }

func (a arch) daemonProgram() []unix.SockFilter {
	return a.assemble(a.spans(daemonAllowed, nil, daemonChecked))
}

// daemonAllowed are the calls that the daemon makes with any arguments.
var daemonAllowed = []group{
	{"memory", []call{
		{"brk", 12, 214},
		{"munmap", 11, 215},
		{"mremap", 25, 216},
		{"msync", 26, 227},
		{"madvise", 28, 233},
		{"mincore", 27, 232},
		{"mlock", 149, 228},
		{"munlock", 150, 229},
	}},
	{"threads and signals of this process", []call{
		{"futex", 202, 98},
		{"set_robust_list", 273, 99},
		{"set_tid_address", 218, 96},
		{"rseq", 334, 293},
		{"membarrier", 324, 283},
		{"gettid", 186, 178},
		{"getpid", 39, 172},
		{"getppid", 110, 173},
		{"arch_prctl", 158, -1},
		{"sched_yield", 24, 124},
		{"sched_getaffinity", 204, 123},
		{"restart_syscall", 219, 128},
		{"exit", 60, 93},
		{"waitid", 247, 95}, // for the keeper, which was started before
		{"exit_group", 231, 94},
		{"rt_sigaction", 13, 134},
		{"rt_sigprocmask", 14, 135},
		{"rt_sigreturn", 15, 139},
		{"sigaltstack", 131, 132},
		{"tgkill", 234, 131},
		{"getuid", 102, 174},
		{"geteuid", 107, 175},
		{"getgid", 104, 176},
		{"getegid", 108, 177},
		{"getgroups", 115, 158},
		{"getrusage", 98, 165},
		{"getrlimit", 97, 163},
		{"prlimit64", 302, 261},
		{"umask", 95, 166},
		{"uname", 63, 160},
		{"sysinfo", 99, 179},
		{"getrandom", 318, 278},
	}},
	{"time", []call{
		{"clock_gettime", 228, 113},
		{"clock_getres", 229, 114},
		{"clock_nanosleep", 230, 115},
		{"nanosleep", 35, 101},
		{"gettimeofday", 96, 169},
		{"setitimer", 38, 103},
		{"timer_create", 222, 107},
		{"timer_settime", 223, 110},
		{"timer_delete", 226, 111},
	}},
	{"waiting", []call{
		{"epoll_create1", 291, 20},
		{"epoll_ctl", 233, 21},
		{"epoll_wait", 232, -1},
		{"epoll_pwait", 281, 22},
		{"epoll_pwait2", 441, 441},
		{"eventfd2", 290, 19},
		{"poll", 7, -1},
		{"ppoll", 271, 73},
		{"pselect6", 270, 72},
		{"pidfd_open", 434, 434},
	}},
	{"descriptors", []call{
		{"read", 0, 63},
		{"write", 1, 64},
		{"readv", 19, 65},
		{"writev", 20, 66},
		{"pread64", 17, 67},
		{"pwrite64", 18, 68},
		{"preadv", 295, 69},
		{"pwritev", 296, 70},
		{"preadv2", 327, 286},
		{"pwritev2", 328, 287},
		{"lseek", 8, 62},
		{"close", 3, 57},
		{"close_range", 436, 436},
		{"dup", 32, 23},
		{"dup3", 292, 24},
		{"fcntl", 72, 25},
		{"flock", 73, 32},
		{"pipe2", 293, 59},
		{"splice", 275, 76},
		{"sendfile", 40, 71},
		{"copy_file_range", 326, 285},
		{"memfd_create", 319, 279},
	}},
	{"files, as far as Landlock and their modes allow", []call{
		{"openat", 257, 56},
		{"openat2", 437, 437},
		{"fstat", 5, 80},
		{"newfstatat", 262, 79},
		{"statx", 332, 291},
		{"statfs", 137, 43},
		{"fstatfs", 138, 44},
		{"faccessat", 269, 48},
		{"faccessat2", 439, 439},
		{"readlinkat", 267, 78},
		{"getcwd", 79, 17},
		{"getdents64", 217, 61},
		{"mkdirat", 258, 34},
		{"unlinkat", 263, 35},
		{"renameat", 264, 38},
		{"renameat2", 316, 276},
		{"linkat", 265, 37},
		{"symlinkat", 266, 36},
		{"ftruncate", 77, 46},
		{"fallocate", 285, 47},
		{"fadvise64", 221, 223},
		{"sync_file_range", 277, 84},
		{"fsync", 74, 82},
		{"fdatasync", 75, 83},
		{"syncfs", 306, 267},
		{"utimensat", 280, 88},
		{"fchown", 93, 55},
		{"fchownat", 260, 54},
	}},
	{"sockets that exist", []call{
		{"bind", 49, 200},
		{"listen", 50, 201},
		{"accept4", 288, 242},
		{"connect", 42, 203},
		{"shutdown", 48, 210},
		{"getsockname", 51, 204},
		{"getpeername", 52, 205},
		{"getsockopt", 55, 209},
		{"sendto", 44, 206},
		{"recvfrom", 45, 207},
		{"sendmsg", 46, 211},
		{"recvmsg", 47, 212},
	}},
}

// daemonChecked are the calls of the daemon whose arguments decide.
var daemonChecked = []checkedCall{
	{call{"clone", 56, 220}, "threads, no processes", check{
		{[]cond{isNot(0, namespaceFlags, 0)}, eperm},
		{[]cond{is(0, unix.CLONE_THREAD, unix.CLONE_THREAD)}, allow},
		{nil, eperm},
	}},
	{call{"mmap", 9, 222}, "no new executable memory", notExecutable},
	{call{"mprotect", 10, 226}, "no new executable memory", notExecutable},
	{call{"socket", 41, 198}, "TCP, UDP and Unix sockets; the socket table, which names the user of a TCP client", check{
		{[]cond{is(0, all, unix.AF_UNIX)}, allow},
		{[]cond{is(0, all, unix.AF_NETLINK), is(2, all, unix.NETLINK_SOCK_DIAG)}, allow},
		{[]cond{isNot(0, all, unix.AF_INET, unix.AF_INET6)}, eafnosupport},
		{[]cond{isNot(1, sockType, unix.SOCK_STREAM, unix.SOCK_DGRAM)}, eperm},
		{[]cond{is(2, all, 0, unix.IPPROTO_TCP, unix.IPPROTO_UDP)}, allow},
		{nil, eprotonosupport},
	}},
	{call{"socketpair", 53, 199}, "Unix sockets", check{
		{[]cond{is(0, all, unix.AF_UNIX)}, allow},
		{nil, eafnosupport},
	}},
	{call{"setsockopt", 54, 208}, "no program for a socket", check{
		{[]cond{is(1, all, unix.SOL_SOCKET), is(2, all, unix.SO_ATTACH_FILTER, unix.SO_ATTACH_BPF, unix.SO_ATTACH_REUSEPORT_CBPF, unix.SO_ATTACH_REUSEPORT_EBPF)}, eperm},
		{nil, allow},
	}},
	{call{"ioctl", 16, 29}, "asking about a pipe or terminal, and the size of a terminal", check{
		{[]cond{is(1, all, unix.TCGETS, unix.TIOCINQ, unix.TIOCGWINSZ, unix.TIOCSWINSZ)}, allow},
		{nil, eperm},
	}},
	{call{"prctl", 157, 167}, "names of threads and mappings", check{
		{[]cond{is(0, all, unix.PR_SET_NAME, unix.PR_GET_NAME, unix.PR_SET_VMA)}, allow},
		{nil, eperm},
	}},
	{call{"fchmod", 91, 52}, "no setuid, no setgid", noSetid(1)},
	{call{"fchmodat", 268, 53}, "no setuid, no setgid", noSetid(2)},
	{call{"fchmodat2", 452, 452}, "no setuid, no setgid", noSetid(2)},
}

var notExecutable = check{
	{[]cond{is(2, unix.PROT_EXEC, unix.PROT_EXEC)}, eperm},
	{nil, allow},
}
