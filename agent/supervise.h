#ifndef BOXD_SUPERVISE_H
#define BOXD_SUPERVISE_H

#include <stdint.h>

/* Bounds of a box: how many sockets of a kind may exist at once. */
struct boxd_bounds {
	uint32_t netlink;
	uint32_t inet; /* TCP and UDP, IPv4 and IPv6 together */
};

/* Files of procfs that the supervisor reads. */
struct boxd_files {
	int proc;      /* /proc */
	int protocols; /* /proc/self/net/protocols */
	int sockstat;  /* /proc/self/net/sockstat */
};

/* Answers the calls that the seccomp policy leaves to the supervisor, all of them
 * socket(2), until listener fails; returns the errno. The descriptors stay the
 * caller's. */
int boxd_supervise(int listener, struct boxd_files files, struct boxd_bounds bounds);

#endif
