// The birth of PID 1 in its cgroup. libcontainer would attach the process that it
// started, which waits for an RCU grace period of several milliseconds; born in
// place it waits for nothing (clone3 with CLONE_INTO_CGROUP).
//
// libcontainer cannot be told to do so. But what it executes first is this very
// binary, as "init", with the descriptors of libcontainer.Process.ExtraFiles from
// number 3 on. So before the constructor of package nsenter runs, this one makes
// a child in the cgroup behind descriptor BIRTH_CGROUP_FD. The child goes on as
// if nothing had happened: it is "stage 0" of nsenter. The parent waits for it
// and for "stage 1", which nsenter makes a child of its parent, and hands stage
// 0's status on. What remains is "stage 2", the later PID 1, which then becomes a
// child of the launcher: it is the nearest subreaper.
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

// There is a second thing to see to. When all is set up, the later PID 1 opens
// libcontainer's exec fifo for writing, to wait for the launcher to open it for
// reading. A launcher that was killed just before would leave it waiting for ever.
// So it brings its own reader along, does not wait, and finds out about its
// launcher at the agent's connection. The launcher does without the fifo
// (Container.Start, and not Run).
#define BIRTH_CGROUP_FD 4
#define INTO_CGROUP 0x200000000ULL /* CLONE_INTO_CGROUP, Linux 5.7 */
#define STAGES 2                   /* children that end before PID 1 is there */

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
		_exit(1); // the launcher sees a box that did not start
	if (stage0 == 0) {
		open_fifo();
		// The agent gets this number as a closed descriptor.
		close(BIRTH_CGROUP_FD);
		return;
	}
	for (i = 0; i < STAGES; i++) {
		int s = wait_child(&pid);
		if (pid == stage0)
			status = s;
		if (s != 0)
			_exit(s); // nothing more will come
	}
	_exit(status);
}
