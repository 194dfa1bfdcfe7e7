package main

import (
	"bytes"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

var processProbes = []probe{
	{"fds", "a leaked descriptor of the host is a way out (CVE-2024-21626)", descriptors, false},
	{"cwd", "a working directory outside of the root is one too (CVE-2024-21626)", workingDirectory, false},
	{"kill-init", "PID 1 ends or stops by a command's hand", killInit, false},
	{"ptrace-init", "code runs as PID 1", func(bait) outcome { return ptrace(1) }, false},
	{"mem-init", "the memory of PID 1 is read or written", opening(unix.O_RDWR, "/proc/1/mem"), false},
	{"vm-init", "the memory of PID 1 is read", func(bait) outcome { return vm(1) }, false},
	{"getfd-init", "descriptors of PID 1 are copied", func(bait) outcome { return getfd(1) }, false},
	{"spy-init", "PID 1 is dumpable: what it holds can be seen", opening(unix.O_RDONLY,
		"/proc/1/environ", "/proc/1/maps", "/proc/1/auxv", "/proc/1/stack", "/proc/1/fd", "/proc/1/map_files", "/proc/1/io"), true},
	{"exe-init", "the launcher's program is overwritten or copied (CVE-2019-5736)", func(bait) outcome { return exe(1) }, false},
	{"other-pids", "processes of the host or another box are visible", otherPIDs, true},
	{"session", "a shared session means a shared terminal (CVE-2017-5226)", session, false},
}

// descriptors looks at every number that could be open. It ignores epoll and eventfd descriptors,
// which the Go runtime opens for itself after the start.
func descriptors(bait) outcome {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return untried(cause(err))
	}
	for fd := 3; fd < int(min(limit.Cur, 1<<16)); fd++ {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil {
			continue
		}
		name, _ := os.Readlink("/proc/self/fd/" + strconv.Itoa(fd))
		if name != "anon_inode:[eventpoll]" && name != "anon_inode:[eventfd]" {
			return escaped("descriptor %d is open on %q", fd, name)
		}
	}
	return blocked("only 0, 1 and 2 are open")
}

func workingDirectory(bait) outcome {
	dir, err := os.Readlink("/proc/self/cwd")
	if err != nil {
		return untried(cause(err))
	}
	if !strings.HasPrefix(dir, "/") || dir == "/proc" || strings.HasPrefix(dir, "/proc/") {
		return escaped("the working directory is %q", dir)
	}
	return blocked("the working directory is %q", dir)
}

func killInit(bait) outcome {
	signals := []unix.Signal{unix.SIGKILL, unix.SIGSTOP, unix.SIGTERM, unix.SIGSEGV, unix.SIGQUIT, 0}
	return each(func(sig unix.Signal) outcome {
		return all(
			func() outcome { return failing("kill", unix.Kill(1, sig)) },
			func() outcome { return failing("tgkill", unix.Tgkill(1, 1, sig)) },
			func() outcome {
				fd, err := unix.PidfdOpen(1, 0)
				if err != nil {
					return failing("pidfd_open", err)
				}
				defer unix.Close(fd)
				return failing("pidfd_send_signal", unix.PidfdSendSignal(fd, sig, nil, 0))
			})
	}, signals...)
}

func ptrace(pid int) outcome {
	return all(
		call("PTRACE_ATTACH", unix.SYS_PTRACE, unix.PTRACE_ATTACH, uintptr(pid)),
		call("PTRACE_SEIZE", unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid)))
}

func vm(pid int) outcome {
	var buf [8]byte
	local := []unix.Iovec{{Base: &buf[0], Len: 8}}
	// With an address that no process has mapped, EFAULT can be told from EPERM.
	for _, write := range []bool{false, true} {
		fn := unix.ProcessVMReadv
		if write {
			fn = unix.ProcessVMWritev
		}
		_, err := fn(pid, local, []unix.RemoteIovec{{Base: 1, Len: 8}}, 0)
		if err != unix.EPERM && err != unix.ESRCH {
			return escaped("process_vm: %v instead of EPERM", err)
		}
	}
	runtime.KeepAlive(buf)
	return blocked("EPERM")
}

func getfd(pid int) outcome {
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return failing("pidfd_open", err)
	}
	defer unix.Close(fd)
	return each(func(number int) outcome {
		return call("pidfd_getfd", unix.SYS_PIDFD_GETFD, uintptr(fd), uintptr(number))()
	}, 0, 1, 2, 3)
}

func exe(pid int) outcome {
	path := procPath(pid, "exe")
	return all(
		func() outcome { return openOne(path, unix.O_WRONLY) },
		func() outcome { return openOne(path, unix.O_RDONLY) },
		func() outcome { return openOne(path, unix.O_PATH) },
		func() outcome {
			// The program itself is a bind mount or file that the caller has given.
			_, err := os.Readlink(path)
			return failing("reading the link "+path, err)
		})
}

func procPath(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

// otherPIDs expects to find only PID 1 and itself.
func otherPIDs(bait) outcome {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return untried(cause(err))
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err == nil && pid != 1 && pid != os.Getpid() {
			comm, _ := os.ReadFile("/proc/" + e.Name() + "/comm")
			return escaped("process %d %q is visible", pid, bytes.TrimSpace(comm))
		}
	}
	return blocked("only PID 1 and this process are visible")
}

func session(bait) outcome {
	sid, err := unix.Getsid(0)
	if err != nil {
		return untried(cause(err))
	}
	if sid != os.Getpid() {
		return escaped("the session leader is %d, not this process", sid)
	}
	return openOne("/dev/tty", unix.O_RDWR)
}

// pointer returns the address of v as an argument of a raw call.
func pointer[T any](v *T) uintptr { return uintptr(unsafe.Pointer(v)) }

// status returns a line of /proc/self/status.
func status(field string) (string, bool) {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return "", false
	}
	lines := strings.Split(string(text), "\n")
	i := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, field+":") })
	if i < 0 {
		return "", false
	}
	return strings.TrimSpace(lines[i][len(field)+1:]), true
}
