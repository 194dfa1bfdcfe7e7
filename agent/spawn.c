// The start of a command. The child shares memory with the agent until it executes
// the program (CLONE_VM|CLONE_VFORK: no page tables are copied), so everything
// between clone3 and execve is plain system calls on memory that was prepared
// before: no allocation, no locks, no libc function that keeps state.
#define _GNU_SOURCE
#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/capability.h>
#include <linux/sched.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef CLONE_CLEAR_SIGHAND
#define CLONE_CLEAR_SIGHAND 0x100000000ULL /* Linux 5.5 */
#endif
#ifndef CLONE_INTO_CGROUP
#define CLONE_INTO_CGROUP 0x200000000ULL /* Linux 5.7 */
#endif
#ifndef SYS_close_range
#define SYS_close_range 436 /* Linux 5.9 */
#endif

#define CHILD_STACK (64 * 1024)
#define SELF_FD 3 /* where a child has the agent's binary between stdio and exec */

// The kernel's struct clone_args up to cgroup; the header's may be older.
struct clone_args_v2 {
	uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size,
		tls, set_tid, set_tid_size, cgroup;
};

// clone3 with a new stack for a child that never returns: the child calls
// fn(arg) on it. glibc has no wrapper for clone3.
static long clone3_call(struct clone_args_v2 *args, void (*fn)(void *), void *arg)
{
	long ret;
#if defined(__x86_64__)
	register void (*r8)(void *) __asm__("r8") = fn;
	register void *r9 __asm__("r9") = arg;
	__asm__ volatile(
		"syscall\n\t"
		"testq %%rax, %%rax\n\t"
		"jnz 1f\n\t"
		"xorl %%ebp, %%ebp\n\t"
		"andq $-16, %%rsp\n\t"
		"movq %%r9, %%rdi\n\t"
		"callq *%%r8\n\t"
		"hlt\n\t"
		"1:"
		: "=a"(ret)
		: "0"((long)SYS_clone3), "D"(args), "S"(sizeof *args), "r"(r8), "r"(r9)
		: "rcx", "r11", "memory", "cc");
#elif defined(__aarch64__)
	register long x8 __asm__("x8") = SYS_clone3;
	register long x0 __asm__("x0") = (long)args;
	register long x1 __asm__("x1") = sizeof *args;
	register void (*x10)(void *) __asm__("x10") = fn;
	register void *x11 __asm__("x11") = arg;
	__asm__ volatile(
		"svc #0\n\t"
		"cbnz x0, 1f\n\t"
		"mov x29, xzr\n\t"
		"mov x0, x11\n\t"
		"blr x10\n\t"
		"brk #1\n\t"
		"1:"
		: "+r"(x0)
		: "r"(x8), "r"(x1), "r"(x10), "r"(x11)
		: "memory", "cc", "x30");
	ret = x0;
#else
#error "boxd supports x86_64 and arm64"
#endif
	return ret;
}

static void fail(struct boxd_spawn *s, int step)
{
	s->step = step;
	s->err = errno;
	for (;;)
		syscall(SYS_exit_group, 127);
}

// Gets the command's user's rights to files, but keeps the agent's credentials for
// signals: if a command could stop the child now, the agent's thread would hang.
static void see_as_user(struct boxd_spawn *s)
{
	// Both calls return the former id, whether or not they worked.
	syscall(SYS_setfsgid, s->gid);
	syscall(SYS_setfsuid, s->uid);
	if ((uint32_t)syscall(SYS_setfsgid, -1) != s->gid) {
		errno = EPERM;
		fail(s, STEP_GID);
	}
	if ((uint32_t)syscall(SYS_setfsuid, -1) != s->uid) {
		errno = EPERM;
		fail(s, STEP_UID);
	}
}

// Becomes the command's user for good. The agent's threads have renounced before
// (harden.go) what a child would inherit beyond its own credentials: bounding set,
// securebits, groups.
static void drop_privileges(struct boxd_spawn *s)
{
	struct __user_cap_header_struct head = { _LINUX_CAPABILITY_VERSION_3, 0 };
	struct __user_cap_data_struct caps[2] = { { 0 } };

	// The raw calls change this thread only; libc's would signal every thread
	// of the agent to follow.
	if (syscall(SYS_setresgid, s->gid, s->gid, s->gid) < 0)
		fail(s, STEP_GID);
	if (syscall(SYS_setresuid, s->uid, s->uid, s->uid) < 0)
		fail(s, STEP_UID);
	// All others go, and with them the ambient ones; these stay ambient, as the agent has
	// them, so that the program gets them, capabilities(7).
	if (s->unpacks && s->uid == 0) {
		uint32_t files = 1U << CAP_CHOWN | 1U << CAP_DAC_READ_SEARCH | 1U << CAP_FOWNER;
		caps[0].effective = caps[0].permitted = caps[0].inheritable = files;
	}
	if (s->guarded)
		caps[1].effective = caps[1].permitted = caps[1].inheritable = 1U << (CAP_WAKE_ALARM - 32);
	if (syscall(SYS_capset, &head, caps) < 0)
		fail(s, STEP_CAPABILITIES);
}

// Creates dir and its missing parents as the command's user. dir is scratch
// memory of this call: it is cut at each slash and mended.
static int make_dirs(char *dir)
{
	char *p;

	for (p = dir + 1; *p; p++) {
		if (*p != '/')
			continue;
		*p = 0;
		int r = syscall(SYS_mkdirat, AT_FDCWD, dir, 0755);
		*p = '/';
		if (r < 0 && errno != EEXIST)
			return -1;
	}
	if (syscall(SYS_mkdirat, AT_FDCWD, dir, 0755) < 0 && errno != EEXIST)
		return -1;
	return 0;
}

// Enters the working directory as the command's user and proves that it lies in
// the box and not in /proc (CVE-2024-21626).
static void enter_dir(struct boxd_spawn *s)
{
	char cwd[PATH_MAX];
	long n;

	if (syscall(SYS_chdir, s->dir) < 0) {
		if (errno != ENOENT || !s->make_dir)
			fail(s, STEP_CHDIR);
		if (make_dirs(s->dir) < 0)
			fail(s, STEP_MKDIR);
		if (syscall(SYS_chdir, s->dir) < 0)
			fail(s, STEP_CHDIR);
	}
	n = syscall(SYS_getcwd, cwd, sizeof cwd);
	if (n < 0)
		fail(s, STEP_CWD_INSIDE);
	if (cwd[0] != '/' || (strncmp(cwd, "/proc", 5) == 0 && (cwd[5] == '/' || cwd[5] == 0))) {
		errno = EPERM;
		fail(s, STEP_CWD_INSIDE);
	}
}

static void set_stdio(struct boxd_spawn *s)
{
	unsigned int first = 3, n;
	int i;

	// The descriptors are all above 2: the agent keeps 0, 1 and 2 open on
	// /dev/null, so no dup3 can overwrite one that is still needed.
	for (i = 0; i < 3; i++)
		if (syscall(SYS_dup3, s->fds[i], i, 0) < 0)
			fail(s, STEP_STDIO);
	// The agent's own binary, if that is the program, goes to descriptor 3, and the
	// exec closes it.
	if (s->self >= 0) {
		if (s->self != SELF_FD && syscall(SYS_dup3, s->self, SELF_FD, O_CLOEXEC) < 0)
			fail(s, STEP_STDIO);
		first = SELF_FD + 1;
	}
	// These are all above their new numbers.
	for (n = 0; n < s->nextra; n++) {
		first = FIRST_EXTRA + n;
		if (syscall(SYS_dup3, s->extra[n], first++, 0) < 0)
			fail(s, STEP_STDIO);
	}
	if (syscall(SYS_close_range, first, ~0U, 0) < 0)
		fail(s, STEP_CLOSE_RANGE);
}

static void set_limits(struct boxd_spawn *s)
{
	uint32_t i;

	for (i = 0; i < s->nrlimits; i++) {
		struct { uint64_t cur, max; } now, want;
		if (syscall(SYS_prlimit64, 0, s->rlimits[i].resource, NULL, &now) < 0)
			fail(s, STEP_RLIMIT);
		want.cur = s->rlimits[i].soft;
		want.max = s->rlimits[i].hard;
		// A hard limit cannot be raised without CAP_SYS_RESOURCE in the host's
		// user namespace: a stricter one stays.
		if (want.max > now.max)
			want.max = now.max;
		if (want.cur > want.max)
			want.cur = want.max;
		if (syscall(SYS_prlimit64, 0, s->rlimits[i].resource, &want, NULL) < 0)
			fail(s, STEP_RLIMIT);
	}
}

// Skips the paths at which there is no program, so that exec_program has few to
// try.
static void skip_missing(struct boxd_spawn *s)
{
	struct stat st;

	while (s->self < 0 && s->paths[0] && s->paths[1] &&
	       syscall(SYS_newfstatat, AT_FDCWD, s->paths[0], &st, 0) < 0 &&
	       (errno == ENOENT || errno == ENOTDIR))
		s->paths++;
}

static void exec_program(struct boxd_spawn *s)
{
	int err = ENOENT;
	char **path;

	if (s->self >= 0) {
		syscall(SYS_execveat, SELF_FD, "", s->argv, s->envp, AT_EMPTY_PATH);
		fail(s, STEP_EXEC);
	}
	// As execvp(3): go on after "not found", remember "not permitted".
	for (path = s->paths; *path; path++) {
		syscall(SYS_execve, *path, s->argv, s->envp);
		if (errno == EACCES)
			err = EACCES;
		else if (errno != ENOENT && errno != ENOTDIR) {
			err = errno;
			break;
		}
	}
	errno = err;
	fail(s, STEP_EXEC);
}

// Enters the command's v1 cgroups. A thread that writes "0" to a tasks file moves
// itself alone, which needs no RCU grace period, unlike moving another process
// (the single thread case of cgroup_procs_write_start, kernel/cgroup/cgroup.c).
static void enter_cgroups(struct boxd_spawn *s)
{
	uint32_t i;

	for (i = 0; i < s->ntasks; i++)
		if (syscall(SYS_write, s->tasks[i], "0", 1) < 0)
			fail(s, STEP_CGROUPS);
}

static void child(void *arg)
{
	struct boxd_spawn *s = arg;
	uint64_t no_signals = 0;

	enter_cgroups(s);
	if (syscall(SYS_setsid) < 0)
		fail(s, STEP_SETSID);
	if (s->tty && syscall(SYS_ioctl, s->fds[0], TIOCSCTTY, 0) < 0)
		fail(s, STEP_CTTY);
	set_limits(s);
	set_stdio(s);
	syscall(SYS_umask, 022);
	if (s->place == PLACE_BOX)
		see_as_user(s);
	// In a guest a command may stop this child, and with it only its own helper.
	if (s->place == PLACE_GUEST)
		drop_privileges(s);
	enter_dir(s);
	skip_missing(s);
	if (s->place == PLACE_BOX)
		drop_privileges(s);
	if (syscall(SYS_rt_sigprocmask, SIG_SETMASK, &no_signals, NULL, 8) < 0)
		fail(s, STEP_SIGMASK);
	exec_program(s);
}

int boxd_spawn(struct boxd_spawn *s)
{
	// One stack per thread that spawns; those threads live as long as the agent.
	static __thread char *stack;
	uint64_t all_signals = ~0ULL, before;
	struct clone_args_v2 args = { 0 };
	long pid;

	s->step = s->err = 0;
	if (!stack) {
		void *m = mmap(NULL, CHILD_STACK, PROT_READ | PROT_WRITE,
			       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
		if (m == MAP_FAILED) {
			s->step = STEP_CLONE;
			s->err = errno;
			return -1;
		}
		stack = m;
	}
	args.flags = CLONE_VM | CLONE_VFORK | CLONE_CLEAR_SIGHAND;
	args.exit_signal = SIGCHLD;
	args.stack = (uintptr_t)stack;
	args.stack_size = CHILD_STACK;
	if (s->child) {
		args.flags |= CLONE_PARENT_SETTID;
		args.parent_tid = (uintptr_t)s->child;
	}
	if (s->cgroup >= 0) {
		args.flags |= CLONE_INTO_CGROUP;
		args.cgroup = s->cgroup;
	}
	// The child runs in our memory: no handler of the Go runtime may run there.
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all_signals, &before, 8);
	pid = clone3_call(&args, child, s);
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, 8);
	if (pid < 0) {
		s->step = STEP_CLONE;
		s->err = -pid;
		return -1;
	}
	if (s->step) {
		// It has called exit_group; the reaper of the agent takes its status.
		return -1;
	}
	return pid;
}
