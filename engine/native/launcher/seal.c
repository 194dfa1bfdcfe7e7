// forbid_userns sets the limit of user namespaces in user namespace ns to 0, as
// ConfineStage does in libcontainer's stage. A file in /proc/sys/user governs the namespace of
// the process that opens it, and a process with threads cannot enter a user namespace
// (setns(2)). So a child without threads does it. It runs on a copy of this process's memory
// and makes system calls only, because other threads may have held locks when it was made.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "seal.h"

#define CLEAR_SIGHAND 0x100000000ULL /* CLONE_CLEAR_SIGHAND, Linux 5.5 */

static int forbid(int ns)
{
	int fd;
	char limit = '1';

	if (syscall(SYS_setns, ns, CLONE_NEWUSER) != 0)
		return errno;
	fd = syscall(SYS_openat, AT_FDCWD, "/proc/sys/user/max_user_namespaces", O_RDWR | O_CLOEXEC, 0);
	if (fd < 0)
		return errno;
	if (syscall(SYS_write, fd, "0", 1) != 1)
		return errno;
	// What a kernel turned into a no-op must not go unnoticed.
	if (syscall(SYS_pread64, fd, &limit, 1, 0) != 1 || limit != '0')
		return EPROTO;
	return 0;
}

int forbid_userns(int ns)
{
	struct {
		uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls;
	} args = { .flags = CLEAR_SIGHAND }; // no exit signal: only __WALL waits find the child
	int status;
	pid_t child = syscall(SYS_clone3, &args, sizeof args);

	if (child < 0)
		return errno;
	if (child == 0) {
		syscall(SYS_exit_group, forbid(ns));
		__builtin_unreachable();
	}
	while (waitpid(child, &status, __WALL) < 0)
		if (errno != EINTR)
			return errno;
	return WIFEXITED(status) ? WEXITSTATUS(status) : ECHILD;
}
