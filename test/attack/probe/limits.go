package main

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

var limitProbes = []probe{
	{"leave-cgroup", "a process out of its cgroup has no limits", leaveCgroup, false},
	{"lock-memory", "memory that cannot be reclaimed", lockMemory, false},
}

// leaveCgroup tries to move itself into every cgroup that it can name.
func leaveCgroup(bait) outcome {
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return untried(cause(err))
	}
	var paths []string
	for line := range strings.Lines(string(own)) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for _, root := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/" + f[1], "/sys/fs/cgroup/unified", "/proc/1/root/sys/fs/cgroup"} {
			paths = append(paths, root+"/cgroup.procs", root+"/tasks", root+f[2]+"/cgroup.procs", root+f[2]+"/../cgroup.procs")
		}
	}
	return short(each(func(path string) outcome { return openOne(path, unix.O_WRONLY) }, paths...))
}

// lockMemory tries to lock more than an unprivileged user's default of 8 MiB.
func lockMemory(bait) outcome {
	m, err := unix.Mmap(-1, 0, 64<<20, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return failing("mapping 64 MiB", err)
	}
	return failing("locking 64 MiB", unix.Mlock(m))
}
