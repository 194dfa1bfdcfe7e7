package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// managedProbes run beside a managed process, whose output is in memory files of PID 1, and as the
// same user.
var managedProbes = []probe{
	{"managed-rings", "a box that holds a ring writes what it likes into the output of others, or cuts it short (SIGBUS)", memoryFiles, false},
	{"managed-spy-init", "PID 1 shows the rings that it holds", opening(unix.O_RDWR,
		"/proc/1/fd", "/proc/1/fd/*", "/proc/1/map_files", "/proc/1/map_files/*", "/proc/1/mem"), false},
	{"managed-getfd", "descriptors of PID 1 are copied, rings among them", allDescriptors, false},
}

// strangerProbes run as another user than the managed process "pid".
var strangerProbes = []probe{
	{"stranger-stdio", "the pipes of a managed process may be opened by everybody who reaches them", onPID(unix.O_RDWR, "fd/0", "fd/1", "fd/2"), false},
	{"stranger-read", "its output is read by others", onPID(unix.O_RDONLY, "fd/1", "fd/2", "environ", "maps", "mem"), false},
	{"stranger-signal", "it ends or stops by the hand of others", strangerSignal, false},
}

// memoryFiles looks for a memory file in everything that processes show of themselves.
func memoryFiles(bait) outcome {
	looked := 0
	for _, pattern := range []string{"/proc/[0-9]*/fd/*", "/proc/[0-9]*/map_files/*"} {
		found, _ := filepath.Glob(pattern)
		for _, path := range found {
			target, err := os.Readlink(path)
			if err == nil {
				looked++
			}
			// The program of PID 1 is a memory file, too, and equally hidden.
			if strings.HasPrefix(target, "/memfd:") {
				return escaped("%s is %q", path, target)
			}
		}
	}
	maps, _ := filepath.Glob("/proc/[0-9]*/maps")
	for _, path := range maps {
		if text, _ := os.ReadFile(path); strings.Contains(string(text), "/memfd:") {
			return escaped("%s shows a memory file", path)
		}
	}
	if looked == 0 {
		return untried("no process shows its descriptors, not even this one")
	}
	return blocked("none among %d files", looked)
}

func allDescriptors(bait) outcome {
	fd, err := unix.PidfdOpen(1, 0)
	if err != nil {
		return failing("pidfd_open", err)
	}
	defer unix.Close(fd)
	var numbers []int
	for n := range 256 {
		numbers = append(numbers, n)
	}
	return each(func(n int) outcome { return call("pidfd_getfd", unix.SYS_PIDFD_GETFD, uintptr(fd), uintptr(n))() }, numbers...)
}

// onPID opens files of the process that the test names.
func onPID(flags int, names ...string) func(bait) outcome {
	return func(b bait) outcome {
		if b[baitPID] == "" {
			return untried("no process is named")
		}
		return each(func(name string) outcome { return openOne("/proc/"+b[baitPID]+"/"+name, flags) }, names...)
	}
}

func strangerSignal(b bait) outcome {
	pid, err := strconv.Atoi(b[baitPID])
	if err != nil {
		return untried(cause(err))
	}
	return each(func(sig unix.Signal) outcome { return failing("kill", unix.Kill(pid, sig)) }, 0, unix.SIGSTOP, unix.SIGKILL)
}
