// The launcher keeps only the capabilities that it uses. It gives up all others when it
// starts, even if no service manager has done so, and programs that it executes (mke2fs)
// never have them. The capabilities of a box come from its user namespace, whatever the
// launcher lacks (user_namespaces(7)).
//
// This happens before the Go runtime has threads: each thread has its own bounding set, and
// no call changes those of all threads (capabilities(7)).
#include <errno.h>
#include <linux/capability.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define BIT(cap) (1ULL << (cap))

// test/native/capabilities_test.go removes each of them and names the operation that fails.
// packaging/systemd/boxd-launcher.service has the same list.
static const uint64_t used =
	BIT(CAP_CHOWN)          // sockets, roots and directories of others
	| BIT(CAP_DAC_OVERRIDE) // directories of boxes and users
	| BIT(CAP_FOWNER)       // modes of what belongs to a box
	| BIT(CAP_KILL)         // processes of a box
	| BIT(CAP_SETGID)       // id maps; doing something as its owner
	| BIT(CAP_SETUID)       // likewise
	| BIT(CAP_SETPCAP)      // this; securebits of the thread that makes a user namespace
	| BIT(CAP_NET_ADMIN)    // loopback of a box's network namespace
	| BIT(CAP_SYS_CHROOT)   // entering the mount namespace of a box
	| BIT(CAP_SYS_PTRACE)   // namespaces and root of a box, through /proc
	| BIT(CAP_SYS_ADMIN)    // namespaces, mounts, quotas, loop devices
	| BIT(CAP_SYS_NICE)     // timers of an agent
	| BIT(CAP_MKNOD)        // /dev of a box
	| BIT(CAP_SETFCAP);     // id maps that contain root: views of a client that is root

static void fail(const char *what)
{
	fprintf(stderr, "boxd-init: giving up capabilities: %s: %s\n", what, strerror(errno));
	_exit(125);
}

__attribute__((constructor(102))) static void bound(int argc, char **argv)
{
	struct __user_cap_header_struct header = { .version = _LINUX_CAPABILITY_VERSION_3 };
	struct __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3];
	int cap, has, i;

	if (argc < 2 || (strcmp(argv[1], "launcher") != 0 && strcmp(argv[1], "keeper") != 0))
		return;
	for (cap = 0; cap < 64 && (has = prctl(PR_CAPBSET_READ, cap, 0, 0, 0)) >= 0; cap++)
		if (has && !(used & BIT(cap)) && prctl(PR_CAPBSET_DROP, cap, 0, 0, 0) != 0)
			fail("prctl(PR_CAPBSET_DROP)");
	if (syscall(SYS_capget, &header, sets) != 0)
		fail("capget");
	for (i = 0; i < _LINUX_CAPABILITY_U32S_3; i++) {
		sets[i].permitted &= (uint32_t)(used >> (32 * i));
		sets[i].effective &= sets[i].permitted;
		sets[i].inheritable = 0; // and with it the ambient set
	}
	if (syscall(SYS_capset, &header, sets) != 0)
		fail("capset");
	// No file that it executes gives any of them back. Boxes set this themselves as well.
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
		fail("prctl(PR_SET_NO_NEW_PRIVS)");
}
