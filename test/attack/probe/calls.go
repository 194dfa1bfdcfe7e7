package main

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

const (
	nowhere = 1           // an address that no process has mapped
	none    = ^uintptr(0) // no descriptor
)

// Most calls here have wrong arguments on purpose, so that nothing happens if they are not
// refused. An errno other than that of a refusal means that the kernel processed the call.
var callProbes = []probe{
	{"io-uring", "work out of the filter's sight", refused(unix.SYS_IO_URING_SETUP, 1, nowhere), true},
	{"keyctl", "keyrings are shared with the host's users", refused(unix.SYS_KEYCTL, 0, none-2), true},
	{"add-key", "kernel memory of another account", refused(unix.SYS_ADD_KEY, nowhere, nowhere), true},
	{"request-key", "the kernel runs a program of the host", refused(unix.SYS_REQUEST_KEY, nowhere, nowhere), true},
	{"bpf", "programs in the kernel", refused(unix.SYS_BPF, 9999, nowhere, 16), true},
	{"perf", "a large attack surface", refused(unix.SYS_PERF_EVENT_OPEN, nowhere), true},
	{"userfaultfd", "stops the kernel in the middle of a copy", userfaultfd, true},
	{"kexec", "another kernel", refused(unix.SYS_KEXEC_LOAD, 0, 0, 0, 1<<30), true},
	{"kexec-file", "another kernel", refused(unix.SYS_KEXEC_FILE_LOAD, none, none, 0, 0, 1<<30), true},
	{"init-module", "code in the kernel", refused(unix.SYS_INIT_MODULE, nowhere, 4), true},
	{"finit-module", "code in the kernel", refused(unix.SYS_FINIT_MODULE, none), true},
	{"delete-module", "less code in the kernel", refused(unix.SYS_DELETE_MODULE, nowhere), true},
	{"reboot", "the machine restarts", refused(unix.SYS_REBOOT, 0, 0), true},
	{"swap", "the host's swap", refused(unix.SYS_SWAPOFF, nowhere), true},
	{"acct", "a file of every process", refused(unix.SYS_ACCT, nowhere), true},
	{"quotactl", "quotas of the host", refused(unix.SYS_QUOTACTL, none, nowhere), true},
	{"set-time", "the host's clock", any2(refused(unix.SYS_SETTIMEOFDAY, nowhere), refused(unix.SYS_CLOCK_SETTIME, 0, nowhere)), true},
	{"adjust-time", "the host's clock", any2(refused(unix.SYS_ADJTIMEX, nowhere), refused(unix.SYS_CLOCK_ADJTIME, 0, nowhere)), true},
	{"hostname", "the name of the box is set by its owner", any2(refused(unix.SYS_SETHOSTNAME, nowhere, 1), refused(unix.SYS_SETDOMAINNAME, nowhere, 1)), true},
	{"syslog", "kernel messages, with addresses", any2(refused(unix.SYS_SYSLOG, 10), opening(unix.O_RDONLY, "/dev/kmsg", "/proc/kmsg")), true},
	{"numa", "pages of other processes move", any2(refused(unix.SYS_MOVE_PAGES, 0, 0), refused(unix.SYS_MIGRATE_PAGES, 0, 0)), true},
	{"personality", "READ_IMPLIES_EXEC and others", refused(unix.SYS_PERSONALITY, 0x0400000), true},
	{"unknown-call", "what no list names does not exist", refused(0x1fff), false},
	{"tiocsti", "typing into the caller's terminal (CVE-2017-5226), also with a bit that the kernel drops (CVE-2019-10063)", terminal(unix.TIOCSTI), true},
	{"tioclinux", "the same on a console", terminal(unix.TIOCLINUX), true},
	{"tiocsetd", "line disciplines are modules, loaded on demand", terminal(0x5423), true},
}

// refused expects EPERM or ENOSYS from the filter, which answers before the kernel looks at any
// argument.
func refused(nr uintptr, args ...uintptr) func(bait) outcome {
	return func(bait) outcome {
		_, err := raw(nr, args...)
		if err == unix.EPERM || err == unix.ENOSYS {
			return blocked("%s", cause(err))
		}
		if err == nil {
			return escaped("the call was made")
		}
		return escaped("%s: the kernel looked at the arguments", cause(err))
	}
}

// any2 is an escape if one of the two is.
func any2(a, b func(bait) outcome) func(bait) outcome {
	return func(t bait) outcome {
		return all(func() outcome { return a(t) }, func() outcome { return b(t) })
	}
}

func userfaultfd(b bait) outcome {
	return any2(refused(unix.SYS_USERFAULTFD, 1<<30), opening(unix.O_RDONLY, "/dev/userfaultfd"))(b)
}

// terminal tries a request on stdin and on a terminal of its own.
func terminal(request uintptr) func(bait) outcome {
	return func(bait) outcome {
		own, err := openTerminal()
		if err == nil {
			defer own.Close()
		}
		fds := []uintptr{0}
		if own != nil {
			fds = append(fds, own.Fd())
		}
		value := [8]byte{'x'}
		o := each(func(fd uintptr) outcome {
			return all(
				ioctl(fd, request, &value), ioctl(fd, 1<<32|request, &value))
		}, fds...)
		runtime.KeepAlive(&value)
		return o
	}
}

// ioctl expects the filter's EPERM. The kernel's own refusals (not a terminal, not allowed by
// sysctl) show that the filter let the request through.
func ioctl(fd, request uintptr, value *[8]byte) func() outcome {
	return func() outcome {
		_, err := raw(unix.SYS_IOCTL, fd, request, pointer(value))
		if err == unix.EPERM {
			return blocked("EPERM")
		}
		return escaped("ioctl(%d, %#x): %v", fd, request, err)
	}
}

// openTerminal creates a pseudoterminal and returns its slave end. The master stays open.
func openTerminal() (*os.File, error) {
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		return nil, err
	}
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	if err != nil {
		return nil, err
	}
	return os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
}
