package main

import (
	"os"
	"runtime"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// agentID is the user and group of PID 1 in a box.
const agentID = 65535

var identityProbes = []probe{
	{"capabilities", "any capability widens what the kernel lets a box try", capabilities, true},
	{"no-new-privs", "without it setuid programs give rights", statusIs("NoNewPrivs", "1"), true},
	{"seccomp-mode", "2 is filter mode", statusIs("Seccomp", "2"), true},
	{"id-map", "an id of the box is root on the host", idMap, true},
	{"become-init", "the user of PID 1 is the agent's alone", becomeInit, true},
	{"become-other", "another user's files", becomeOther, true},
	{"groups", "groups of the host's root", groups, false},
	{"realtime", "the box starves the host", realtime, true},
	{"oom-score", "the host's processes are killed first", oomScore, false},
	{"core-limit", "a core dump goes to a program of the host", coreLimit, false},
	{"raise-limits", "hard limits are raised", raiseLimits, false},
}

func capabilities(bait) outcome {
	for _, set := range []string{"CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"} {
		value, ok := status(set)
		if !ok {
			return untried("no line " + set + " in /proc/self/status")
		}
		if strings.Trim(value, "0") != "" {
			return escaped("%s is %s", set, value)
		}
	}
	return blocked("all five sets are empty")
}

func statusIs(field, want string) func(bait) outcome {
	return func(bait) outcome {
		got, ok := status(field)
		if !ok {
			return untried("no line " + field + " in /proc/self/status")
		}
		if got != want {
			return escaped("%s is %s, not %s", field, got, want)
		}
		return blocked("%s is %s", field, got)
	}
}

// idMap reads the maps of this user namespace: first ID inside, first ID in the parent, length.
func idMap(bait) outcome {
	return each(func(path string) outcome {
		text, err := os.ReadFile(path)
		if err != nil {
			return untried(cause(err))
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Fields(line)
			if first, err := strconv.ParseUint(f[1], 10, 32); err != nil || first < 1<<16 {
				return escaped("%s has %q", path, strings.Join(f, " "))
			}
		}
		return blocked("%s has %q", path, strings.Join(strings.Fields(string(text)), " "))
	}, "/proc/self/uid_map", "/proc/self/gid_map")
}

func becomeInit(bait) outcome {
	return all(
		call("setresuid", unix.SYS_SETRESUID, agentID, agentID, agentID),
		call("setresgid", unix.SYS_SETRESGID, agentID, agentID, agentID),
		call("setfsuid", unix.SYS_SETRESUID, ^uintptr(0), agentID, ^uintptr(0)))
}

func becomeOther(bait) outcome {
	other := uintptr(0)
	if os.Getuid() == 0 {
		other = 1234
	}
	return all(
		call("setuid", unix.SYS_SETUID, other),
		call("setgid", unix.SYS_SETGID, other),
		call("setresuid", unix.SYS_SETRESUID, other, other, other),
		func() outcome {
			list := []uint32{0, 27, agentID}
			o := call("setgroups", unix.SYS_SETGROUPS, uintptr(len(list)), pointer(&list[0]))()
			runtime.KeepAlive(list)
			return o
		})
}

func groups(bait) outcome {
	list, err := os.Getgroups()
	if err != nil {
		return untried(cause(err))
	}
	for _, g := range list {
		if g != os.Getgid() {
			return escaped("supplementary groups are %v", list)
		}
	}
	return blocked("no supplementary groups")
}

func realtime(bait) outcome {
	return all(
		func() outcome {
			param := struct{ priority int32 }{1}
			o := call("SCHED_FIFO", unix.SYS_SCHED_SETSCHEDULER, 0, 1, pointer(&param))()
			runtime.KeepAlive(&param)
			return o
		},
		func() outcome { return failing("nice -10", unix.Setpriority(unix.PRIO_PROCESS, 0, -10)) },
		call("ioprio_set realtime", unix.SYS_IOPRIO_SET, 1, 0, 1<<13))
}

func oomScore(bait) outcome {
	return failing("oom_score_adj -1000", os.WriteFile("/proc/self/oom_score_adj", []byte("-1000"), 0))
}

func coreLimit(bait) outcome {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &limit); err != nil {
		return untried(cause(err))
	}
	// 1 is less than any core file. Unlike 0, it also stops a core_pattern that is a pipe
	// (core(5)). It is 0 if the host's own limit is 0.
	if limit.Cur > 1 || limit.Max > 1 {
		return escaped("RLIMIT_CORE is %d, %d", limit.Cur, limit.Max)
	}
	return blocked("RLIMIT_CORE is %d, %d", limit.Cur, limit.Max)
}

func raiseLimits(bait) outcome {
	return each(func(resource int) outcome {
		var limit unix.Rlimit
		if err := unix.Getrlimit(resource, &limit); err != nil {
			return untried(cause(err))
		}
		if limit.Max == unix.RLIM_INFINITY {
			return untried("unlimited already")
		}
		limit.Max++
		return failing("raising a hard limit", unix.Setrlimit(resource, &limit))
	}, unix.RLIMIT_NOFILE, unix.RLIMIT_FSIZE, unix.RLIMIT_NPROC)
}
