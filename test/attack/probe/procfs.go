package main

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

const writing = unix.O_WRONLY

var procfsProbes = []probe{
	{"release-agent", "the kernel runs a program of the box as root (CVE-2022-0492)", opening(writing,
		"/sys/fs/cgroup/release_agent", "/sys/fs/cgroup/*/release_agent"), false},
	{"core-pattern", "the kernel runs a program of the box as root", opening(writing, "/proc/sys/kernel/core_pattern"), true},
	{"sysrq", "the machine is rebooted or crashed", opening(writing, "/proc/sysrq-trigger"), true},
	{"modprobe", "the kernel runs a program of the box as root", opening(writing,
		"/proc/sys/kernel/modprobe", "/proc/sys/kernel/hotplug", "/proc/sys/kernel/poweroff_cmd", "/proc/sys/fs/binfmt_misc/register"), true},
	{"proc-sys", "settings of the host change", opening(writing, "/proc/sys/kernel/*", "/proc/sys/vm/*", "/proc/sys/fs/*"), true},
	{"proc-sys-net", "settings of the network change, which belong to the box's root without being read-only", opening(writing,
		"/proc/sys/net/*/*", "/proc/sys/net/*/conf/all/*"), true},
	{"proc-sys-user", "limits of nested user namespaces are raised", opening(writing, "/proc/sys/user/*"), false},
	{"proc-irq", "interrupts move to other processors", opening(writing, "/proc/irq/default_smp_affinity", "/proc/irq/*/smp_affinity"), true},
	{"proc-kernel", "memory and state of the kernel are read", reading(
		"/proc/kcore", "/proc/kmsg", "/proc/timer_list", "/proc/sched_debug", "/proc/keys",
		"/proc/latency_stats", "/proc/vmallocinfo", "/proc/slabinfo", "/proc/pagetypeinfo"), true},
	{"pressure", "the load of the host is read, and triggers are set whose removal holds up the end of the box", reading("/proc/pressure/*"), true},
	{"interrupts", "the timing of the host's devices: key strokes, disks", reading("/proc/interrupts"), true},
	{"own-id-map", "an own map that can be written again takes in any id", ownIDMap, false},
	{"sys-write", "devices and modules of the host are configured", opening(writing,
		"/sys/kernel/uevent_helper", "/sys/kernel/mm/ksm/run", "/sys/power/state", "/sys/module/*/parameters/*", "/sys/devices/system/cpu/cpu*/online"), true},
	{"sys-present", "nothing of /sys but the box's processors is needed in it", present("/sys/kernel", "/sys/fs", "/sys/class", "/sys/block", "/sys/devices/virtual", "/sys/devices/system/node", "/sys/devices/system/cpu/vulnerabilities"), true},
	{"cgroupfs", "limits and release_agent are files in it", cgroupfs, true},
	{"cgroup-limits", "a box raises its own limits", opening(writing,
		"/sys/fs/cgroup/*.max", "/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/*/cgroup.procs", "/sys/fs/cgroup/*/tasks",
		"/sys/fs/cgroup/boxd/*/*/*.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/boxd/*/cgroup.procs"), true},
}

// reading is blocked if a file is absent, unreadable or empty (masked).
func reading(paths ...string) func(bait) outcome {
	return func(bait) outcome {
		return each(func(path string) outcome {
			fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
			if err != nil {
				return failing("opening "+path, err)
			}
			defer unix.Close(fd)
			n, err := unix.Read(fd, make([]byte, 64))
			if err != nil {
				return failing("reading "+path, err)
			}
			if n == 0 {
				return blocked("reading %s: empty", path)
			}
			return escaped("reading %s gave %d bytes", path, n)
		}, paths...)
	}
}

// ownIDMap writes what unprivileged processes may write to a new map. It omits the map of project
// IDs, which any process may write but none can use: files change their project only in the first
// user namespace.
func ownIDMap(bait) outcome {
	return each(func(path string) outcome {
		return failing("writing "+path, os.WriteFile(path, []byte("0 0 1\n"), 0))
	}, "/proc/self/uid_map", "/proc/self/gid_map")
}

// present is an escape if one of paths exists.
func present(paths ...string) func(bait) outcome {
	return func(bait) outcome {
		return each(func(path string) outcome {
			_, err := os.Lstat(path)
			return failing(path+" exists", err)
		}, paths...)
	}
}

// cgroupfs expects no cgroup file system in the mount table.
func cgroupfs(bait) outcome {
	table, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		return untried(cause(err))
	}
	for line := range strings.Lines(string(table)) {
		_, fstype, _ := strings.Cut(line, " - ")
		if strings.HasPrefix(fstype, "cgroup") {
			return escaped("%s", strings.TrimSpace(line))
		}
	}
	return blocked("no cgroup file system is mounted")
}
