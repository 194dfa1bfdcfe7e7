#ifndef BOXD_SPAWN_H
#define BOXD_SPAWN_H

#include <stdint.h>

/* Steps of a birth. What the user named (directory, program) is touched with the
 * user's own rights only, and the program runs with nothing else. */
enum boxd_step {
	STEP_CLONE = 1,
	STEP_CGROUPS,
	STEP_SETSID,
	STEP_CTTY,
	STEP_RLIMIT,
	STEP_STDIO,
	STEP_CLOSE_RANGE,
	STEP_GID,
	STEP_UID,
	STEP_CAPABILITIES,
	STEP_MKDIR,
	STEP_CHDIR,
	STEP_CWD_INSIDE,
	STEP_SIGMASK,
	STEP_EXEC,
};

/* Where the child runs. */
enum boxd_place {
	PLACE_BOX,                    /* in the box, on the host's kernel */
	PLACE_OUTSIDE,                /* a helper of ours around a gVisor sandbox: it keeps the agent's privileges */
	PLACE_GUEST,                  /* in a gVisor sandbox, whose kernel has no file system ids */
};

#define FIRST_EXTRA 4

struct boxd_rlimit {
	uint32_t resource;
	uint64_t soft, hard;
};

struct boxd_spawn {
	/* in; lent for the call */
	char **paths;                 /* programs to try in order, NULL at the end */
	int self;                     /* instead of paths: the program as a descriptor, or -1 */
	char **argv;
	char **envp;
	char *dir;                    /* working directory, absolute */
	int make_dir;
	int tty;                      /* fds[0] becomes the controlling terminal */
	int fds[3];
	int cgroup;                   /* directory to be born in, or -1 */
	int *tasks;                   /* v1 tasks files to enter */
	uint32_t ntasks;
	uint32_t uid, gid;
	int unpacks;                  /* user 0 has CAP_CHOWN, CAP_DAC_READ_SEARCH, CAP_FOWNER */
	/* The program is a zygote, which outlives commands and becomes others. It has CAP_WAKE_ALARM, which
	 * is powerless in a box: a process may trace, and read or write the memory and descriptors of, only
	 * processes of its user that have no capability which it lacks itself (cap_ptrace_access_check in
	 * security/commoncap.c). So no command can get into it. A spare drops it when it becomes a command. */
	int guarded;
	/* How the child relates to the box: one of enum boxd_place. */
	int place;
	int *extra;                   /* more descriptors for the program, from FIRST_EXTRA on */
	uint32_t nextra;
	struct boxd_rlimit *rlimits;
	uint32_t nrlimits;
	int32_t *child;               /* or NULL: the kernel writes the pid here before the child runs */
	/* out */
	int step;                     /* enum boxd_step that failed, or 0 */
	int err;                      /* its errno */
};

/* Starts a command; returns its pid once the program runs, or -1 with step and
 * err set and nothing but a zombie left. Blocks the calling thread until the exec. */
int boxd_spawn(struct boxd_spawn *s);

#endif
