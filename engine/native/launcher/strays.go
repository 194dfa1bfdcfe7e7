package launcher

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// reapStrays reaps the dead processes that a failed start of a box has left: those between the program
// that was started, which somebody waits for, and PID 1, which never came to be. Their parents
// have died, so they are children of this process, a subreaper; nothing else knows of them. group is the
// ID of the box's cgroups, which are gone: a zombie stays in its cgroup2 (cgroups(7)).
func reapStrays(group string) {
	lists, _ := filepath.Glob("/proc/self/task/*/children")
	for _, list := range lists {
		pids, _ := os.ReadFile(list) // the thread may be gone
		for pid := range strings.FieldsSeq(string(pids)) {
			in, _ := os.ReadFile("/proc/" + pid + "/cgroup")
			n, err := strconv.Atoi(pid)
			if err == nil && strings.Contains(string(in), "/"+group+"/") {
				_, _ = unix.Wait4(n, nil, unix.WNOHANG, nil)
			}
		}
	}
}
