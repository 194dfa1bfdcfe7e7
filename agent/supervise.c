// The supervisor of a box counts sockets. A socket costs its box a few kilobytes
// of its memory limit, but some of its queues count against no limit: errors,
// netlink messages, connections that wait to be accepted. So the number of sockets
// is bounded.
//
// The seccomp policy suspends each socket(2) of a counted family and reports it
// here (seccomp_unotify(2)). Family, type and protocol are in registers, which
// cannot change while the call waits, so the call may be continued. The policy has
// already refused everything else; the supervisor only counts.
//
// The kernel supplies the counts. /proc/self/net/sockstat has the sum over all
// families, including sockets that are not bound, are in flight over a Unix socket,
// or wait to be accepted. /proc/self/net/protocols shows how many of them are
// netlink and Unix sockets (of TCP and UDP, only those with a port). A socket
// appears there only after its call was continued. So calls that may still be in
// progress are added (struct grant), and threads that ask at the same moment cannot
// share one free place. The bound of netlink sockets is therefore exact; that of the
// others can be off by the Unix sockets that come and go between two reads. The
// files are read only when the last count plus the calls since then reach the bound.
//
// This runs on a thread of PID 1. So the kernel charges a flood of calls to the box,
// the supervisor lives exactly as long as the box, whichever of our processes dies,
// and it opens no socket of these families itself. It must not use memory of the Go
// runtime or wait for anything but the listener.
#define _GNU_SOURCE
#include "supervise.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/netlink.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP
#define SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP 1UL
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS SECCOMP_IOW(4, __u64)
#endif

// More than there can be threads in a box with default limits; beyond it the
// oldest grant is forgotten, and the bound holds but for the number of threads.
#define GRANTS 1024

// How much processor time a thread needs at most to make a socket, in ns.
#define SOCKET_TIME 50000000ULL

enum kind { NETLINK, INET, KINDS };

// A grant is a call that was continued and may still be in progress.
struct grant {
	pid_t thread;
	enum kind kind;
	uint64_t seen; // processor time of the thread when it was found running, or 0
};

struct supervisor {
	struct boxd_files files;
	uint32_t limit[KINDS];
	uint32_t most[KINDS]; // there are no more than that
	struct grant grants[GRANTS];
	int ngrants;
	char text[16384];
};

// Reads a file of procfs from its beginning. Returns -1 if it fails or does not fit.
static int read_all(int fd, char *text, size_t size)
{
	size_t have = 0;

	for (;;) {
		ssize_t n = pread(fd, text + have, size - 1 - have, have);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -1;
		if (have + n >= size - 1) {
			errno = E2BIG;
			return -1;
		}
		if (n == 0)
			break;
		have += n;
	}
	text[have] = 0;
	return 0;
}

// Reads /proc/<thread>/<name>. Returns -1, and sets errno, if that fails: ENOENT or
// ESRCH if the thread is gone.
static int read_of_thread(struct supervisor *s, pid_t thread, const char *name, char *text, size_t size)
{
	char path[64];
	int fd, err;

	snprintf(path, sizeof path, "%d/%s", thread, name);
	fd = openat(s->files.proc, path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -1;
	err = read_all(fd, text, size) < 0 ? errno : 0;
	close(fd);
	errno = err;
	return err ? -1 : 0;
}

// Returns how long a thread has run, in ns, or 0 where the kernel does not say
// (CONFIG_SCHED_INFO).
static uint64_t processor_time(struct supervisor *s, pid_t thread)
{
	char text[128];
	unsigned long long ns = 0;

	if (read_of_thread(s, thread, "schedstat", text, sizeof text) == 0)
		sscanf(text, "%llu", &ns);
	return ns;
}

// Returns the state of a thread as in proc(5), 0 if it is gone, and "running" if it
// cannot be found out.
static char state_of(struct supervisor *s, pid_t thread)
{
	char text[1024], *p;

	if (read_of_thread(s, thread, "stat", text, sizeof text) < 0)
		return errno == ENOENT || errno == ESRCH ? 0 : 'R';
	p = strrchr(text, ')'); // the name, in parentheses, may contain anything
	return p && p[1] == ' ' ? p[2] : 0;
}

static void forget(struct supervisor *s, int i)
{
	memmove(&s->grants[i], &s->grants[i + 1], (s->ngrants - i - 1) * sizeof s->grants[0]);
	s->ngrants--;
}

static uint32_t pending(struct supervisor *s, enum kind kind)
{
	uint32_t n = 0;
	int i;

	for (i = 0; i < s->ngrants; i++)
		n += s->grants[i].kind == kind;
	return n;
}

// Forgets the grants whose calls are over: the thread is gone, or sleeps, which it
// does not do in socket(2), or has run for longer than the call takes. A thread
// that was continued is runnable until it has made the call.
static void settle(struct supervisor *s)
{
	int i = 0;

	while (i < s->ngrants) {
		struct grant *g = &s->grants[i];
		char state = state_of(s, g->thread);

		if (state != 'R' && state != 'D') {
			forget(s, i);
			continue;
		}
		uint64_t now = processor_time(s, g->thread);
		if (g->seen && now - g->seen > SOCKET_TIME) {
			forget(s, i);
			continue;
		}
		if (!g->seen)
			g->seen = now;
		i++;
	}
}

// Reads how many netlink and Unix sockets there are.
static int count_families(struct supervisor *s, uint32_t *netlink, uint32_t *local)
{
	const char *line;

	if (read_all(s->files.protocols, s->text, sizeof s->text) < 0)
		return -1;
	*netlink = *local = 0;
	for (line = s->text; line && *line; line = strchr(line, '\n'), line = line ? line + 1 : NULL) {
		char name[32];
		unsigned int size, sockets;

		if (sscanf(line, "%31s %u %u", name, &size, &sockets) != 3)
			continue; // the heading
		if (strcmp(name, "NETLINK") == 0)
			*netlink = sockets;
		if (strcmp(name, "UNIX") == 0 || strcmp(name, "UNIX-STREAM") == 0)
			*local += sockets;
	}
	return 0;
}

// Reads how many sockets of all families there are.
static int count_all(struct supervisor *s, uint32_t *all)
{
	if (read_all(s->files.sockstat, s->text, sizeof s->text) < 0 || sscanf(s->text, "sockets: used %u", all) != 1)
		return -1;
	return 0;
}

// Counts anew. Settles first: a call that ends in between is then counted twice
// instead of never. The sum is read between two looks at the families, and the
// lower number of Unix sockets counts: some may come and go meanwhile.
static int count(struct supervisor *s)
{
	uint32_t netlink, local, all, local_then;

	settle(s);
	if (count_families(s, &netlink, &local_then) < 0 || count_all(s, &all) < 0 ||
	    count_families(s, &netlink, &local) < 0)
		return -1;
	if (local > local_then)
		local = local_then;
	s->most[NETLINK] = netlink + pending(s, NETLINK);
	s->most[INET] = (all > local + netlink ? all - local - netlink : 0) + pending(s, INET);
	return 0;
}

// Decides about a call: 0, or the errno it gets.
static int decide(struct supervisor *s, const struct seccomp_notif *req)
{
	enum kind kind = (int)req->data.args[0] == AF_NETLINK ? NETLINK : INET;
	int i;

	// A thread that asks again has finished the call before.
	for (i = 0; i < s->ngrants; i++)
		if (s->grants[i].thread == (pid_t)req->pid) {
			forget(s, i);
			break;
		}
	if (s->most[kind] >= s->limit[kind] && (count(s) < 0 || s->most[kind] >= s->limit[kind]))
		return ENOBUFS;
	if (s->ngrants == GRANTS)
		forget(s, 0);
	s->grants[s->ngrants++] = (struct grant){ .thread = req->pid, .kind = kind };
	s->most[kind]++;
	return 0;
}

int boxd_supervise(int listener, struct boxd_files files, struct boxd_bounds bounds)
{
	// The kernel's structures may be larger than those of the header. They are given
	// to the kernel zeroed, as it demands.
	union {
		struct seccomp_notif notif;
		char space[1024];
	} req;
	union {
		struct seccomp_notif_resp resp;
		char space[1024];
	} res;
	struct seccomp_notif_sizes sizes;
	struct supervisor *s;
	uint64_t all = ~0ULL;

	if (syscall(SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, &sizes) < 0)
		return errno;
	if (sizes.seccomp_notif > sizeof req || sizes.seccomp_notif_resp > sizeof res)
		return E2BIG;
	s = calloc(1, sizeof *s);
	if (!s)
		return ENOMEM;
	s->files = files;
	s->limit[NETLINK] = bounds.netlink;
	s->limit[INET] = bounds.inet;
	// The supervisor and the caller take turns on one processor (Linux 6.6).
	ioctl(listener, SECCOMP_IOCTL_NOTIF_SET_FLAGS, SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP);
	// No handler of the Go runtime has any business here.
	syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, NULL, 8);
	for (;;) {
		memset(&req, 0, sizeof req);
		if (ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &req) < 0) {
			if (errno == EINTR || errno == ENOENT) // the caller was killed meanwhile
				continue;
			break;
		}
		memset(&res, 0, sizeof res);
		res.resp.id = req.notif.id;
		res.resp.error = -decide(s, &req.notif);
		if (res.resp.error == 0)
			res.resp.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
		// It fails if the caller was killed; then there is nothing to answer.
		ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &res);
	}
	int err = errno;
	free(s);
	return err;
}
