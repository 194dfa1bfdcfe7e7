// PID 1 starts in its cgroup. libcontainer would attach the running process, which
// takes an RCU grace period of several milliseconds. Starting it there takes none
// (clone3 with CLONE_INTO_CGROUP).
//
// libcontainer has no option for that. But the first program that it executes is
// this binary, as "init", with the descriptors of libcontainer.Process.ExtraFiles
// from number 3 on. So this constructor, which runs before that of package nsenter,
// makes a child in the cgroup of descriptor BIRTH_CGROUP_FD. The child continues as
// "stage 0" of nsenter. The parent waits for it and for "stage 1", which nsenter
// makes a child of its parent, and exits with the status of stage 0. "Stage 2", the
// later PID 1, remains. It becomes a child of the launcher, the nearest subreaper.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// This constructor also opens libcontainer's exec fifo for reading. At the end of its
// set-up the later PID 1 opens the fifo for writing, which waits until the launcher
// opens it for reading. If the launcher were killed just before that, PID 1 would wait
// forever. With a reader of its own it does not wait, and the agent learns from its
// connection whether the launcher lives. The launcher does not use the fifo: it calls
// Container.Start instead of Run.
#define BIRTH_CGROUP_FD 4
#define INTO_CGROUP 0x200000000ULL /* CLONE_INTO_CGROUP, Linux 5.7 */
#define STAGES 2                   /* children that end before PID 1 runs */

static int wait_child(pid_t *pid)
{
	int status;

	do {
		*pid = waitpid(-1, &status, 0);
	} while (*pid < 0 && errno == EINTR);
	if (*pid < 0)
		_exit(1);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// open_fifo opens a reader that is inherited up to the agent's execve.
static void open_fifo(void)
{
	const char *fd = getenv("_LIBCONTAINER_FIFOFD");
	char path[64];

	if (!fd || snprintf(path, sizeof path, "/proc/self/fd/%s", fd) >= (int)sizeof path ||
	    open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC) < 0)
		_exit(1);
}

__attribute__((constructor(101))) static void birth(void)
{
	struct {
		uint64_t flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size,
			tls, set_tid, set_tid_size, cgroup;
	} args = { .flags = INTO_CGROUP, .exit_signal = SIGCHLD, .cgroup = BIRTH_CGROUP_FD };
	const char *type = getenv("_LIBCONTAINER_INITTYPE");
	pid_t stage0, pid;
	int i, status = 0;

	if (!type || strcmp(type, "standard") != 0)
		return;
	stage0 = syscall(SYS_clone3, &args, sizeof args);
	if (stage0 < 0)
		_exit(1); // the launcher sees that the box did not start
	if (stage0 == 0) {
		open_fifo();
		// The agent expects this descriptor to be closed.
		close(BIRTH_CGROUP_FD);
		return;
	}
	for (i = 0; i < STAGES; i++) {
		int s = wait_child(&pid);
		if (pid == stage0)
			status = s;
		if (s != 0)
			_exit(s); // no further stage follows
	}
	_exit(status);
}
