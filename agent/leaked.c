// PID 1 begins with its standard streams and its control connection, whatever the program
// that started it has left open: runc leaked a directory of the host into containers
// (CVE-2024-21626). This runs before the Go runtime has descriptors of its own.
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CONTROL_FD 3 /* ControlFD in agent.go */

__attribute__((constructor)) static void close_leaked(int argc, char **argv)
{
	if (argc != 2 || strcmp(argv[1], "agent") != 0)
		return;
	if (syscall(SYS_close_range, CONTROL_FD + 1, ~0U, 0) != 0) { // Linux 5.9
		fprintf(stderr, "boxd-agent: closing inherited descriptors: %s\n", strerror(errno));
		_exit(125);
	}
}
