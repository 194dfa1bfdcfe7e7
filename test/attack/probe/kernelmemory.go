package main

import (
	"fmt"
	"os"
	"path/filepath"
	"unsafe"

	"golang.org/x/sys/unix"
)

// kernelMemoryProbes try to make the kernel hold memory that no limit of the box counts, or to
// take from a pool of the whole host. Each tries one object and expects the errno of a kernel
// without that feature.
var kernelMemoryProbes = []probe{
	{"socket-filter", "a program in the kernel", socketOption(unix.SOCK_DGRAM, unix.ENOPROTOOPT, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER), true},
	{"reuseport-filter", "a program in the kernel", socketOption(unix.SOCK_DGRAM, unix.ENOPROTOOPT, unix.SOL_SOCKET, unix.SO_ATTACH_REUSEPORT_CBPF), true},
	{"seccomp-filter", "a program in the kernel", answers(unix.EINVAL, unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, 0, nowhere), true},
	{"seccomp-prctl", "a program in the kernel", answers(unix.EINVAL, unix.SYS_PRCTL, unix.PR_SET_SECCOMP, unix.SECCOMP_MODE_FILTER, nowhere), true},
	{"aio", "fs.aio-max-nr is one counter for the host", answers(unix.ENOSYS, unix.SYS_IO_SETUP, 1, nowhere), true},
	{"secret-memory", "the kernel's direct map stays split", answers(unix.ENOSYS, unix.SYS_MEMFD_SECRET, 1<<30), true},
	{"huge-pages", "the pool is the host's", answers(unix.ENOMEM, unix.SYS_MMAP, 0, 2<<20, unix.PROT_READ, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_HUGETLB|unix.MAP_NORESERVE, none, 0), false},
	{"huge-shm", "the pool is the host's", answers(unix.ENOMEM, unix.SYS_SHMGET, 0, 2<<20, 0o4600), false},
	{"huge-memfd", "the pool is the host's", answers(unix.EINVAL, unix.SYS_MEMFD_CREATE, nowhere, unix.MFD_HUGETLB), true},
	{"merge-pages", "items that no limit counts", answers(unix.EINVAL, unix.SYS_MADVISE, 0, 4096, unix.MADV_MERGEABLE), true},
	// Few kernels have these two, so the probe shows something on few hosts.
	{"notification-pipe", "pages that no limit counts", answers(unix.ENOPKG, unix.SYS_PIPE2, nowhere, unix.O_EXCL), false},
	{"core-scheduling", "other processors of the host stay idle", answers(unix.EINVAL, unix.SYS_PRCTL, unix.PR_SCHED_CORE, unix.PR_SCHED_CORE_CREATE, 0, 0, 0), false},
	{"acl", "an ACL of 128 KB in each of 16,384 directories", accessList, false},
	{"lease", "the host's open waits for 45 s", lease, true},
	{"open-file-locks", "locks that no limit counts and no descriptor shows", answers(unix.EINVAL, unix.SYS_FCNTL, none, unix.F_OFD_SETLK, nowhere), true},
	{"core-limit-zero", "at 0 a core_pattern that is a pipe runs", coreLimitZero, false},
	{"md5-keys", "keys that no limit counts", socketOption(unix.SOCK_STREAM, unix.ENOPROTOOPT, unix.SOL_TCP, unix.TCP_MD5SIG), true},
	{"flow-labels", "4,096 for the whole host", socketOption6(unix.ENOPROTOOPT, unix.SOL_IPV6, 32), true},
	{"cork", "datagrams that no limit counts", socketOption(unix.SOCK_DGRAM, unix.ENOPROTOOPT, unix.SOL_UDP, unix.UDP_CORK), false},
	{"timestamps", "copies of packets on the error queue", socketOption(unix.SOCK_DGRAM, unix.ENOPROTOOPT, unix.SOL_SOCKET, unix.SO_TIMESTAMPING), true},
	{"error-queue", "ICMP errors on a queue that no limit counts", ineffective(unix.SOL_IP, unix.IP_RECVERR), true},
	{"buffers", "the bound of queues that no limit counts", ineffective(unix.SOL_SOCKET, unix.SO_RCVBUF), true},
	{"ping-sockets", "a queue that no limit counts", sockets(unix.AF_INET, unix.SOCK_DGRAM, unix.IPPROTO_ICMP), false},
}

// answers expects errno from a call to which a kernel with the feature would give another answer.
func answers(errno unix.Errno, nr uintptr, args ...uintptr) func(bait) outcome {
	return func(bait) outcome {
		_, err := raw(nr, args...)
		return wantErrno(errno, err)
	}
}

func wantErrno(errno unix.Errno, err error) outcome {
	if err == errno {
		return blocked("%s", cause(err))
	}
	if err == nil {
		return escaped("the call was made")
	}
	return escaped("%s, not %s", cause(err), cause(errno))
}

// socketOption expects errno from setting an option of an IPv4 socket. The value is at an
// unmapped address.
func socketOption(kind int, errno unix.Errno, level, name uintptr) func(bait) outcome {
	return optionOf(unix.AF_INET, kind, errno, level, name)
}

// socketOption6 is socketOption for an IPv6 socket.
func socketOption6(errno unix.Errno, level, name uintptr) func(bait) outcome {
	return optionOf(unix.AF_INET6, unix.SOCK_DGRAM, errno, level, name)
}

func optionOf(family, kind int, errno unix.Errno, level, name uintptr) func(bait) outcome {
	return func(bait) outcome {
		fd, err := unix.Socket(family, kind, 0)
		if err != nil {
			return untried(cause(err))
		}
		defer unix.Close(fd)
		return each(func(high uintptr) outcome {
			_, err := raw(unix.SYS_SETSOCKOPT, uintptr(fd), high|level, high|name, nowhere, 32)
			return wantErrno(errno, err)
		}, 0, 1<<32)
	}
}

// ineffective expects that an option can be set, without effect.
func ineffective(level, name int) func(bait) outcome {
	return func(bait) outcome {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return untried(cause(err))
		}
		defer unix.Close(fd)
		before, err := unix.GetsockoptInt(fd, level, name)
		if err != nil {
			return untried(cause(err))
		}
		if err := unix.SetsockoptInt(fd, level, name, before/2+1); err != nil {
			return escaped("setting it fails with %s, which programs take for a reason to give up", cause(err))
		}
		if after, err := unix.GetsockoptInt(fd, level, name); err != nil || after != before {
			return escaped("%d became %d", before, after)
		}
		return blocked("it is still %d", before)
	}
}

func accessList(b bait) outcome {
	dir, err := os.MkdirTemp(b[baitDir], "acl")
	if err != nil {
		return untried(cause(err))
	}
	defer os.Remove(dir)
	// Version 2, and the three entries that repeat the mode; acl(5).
	list := []byte{2, 0, 0, 0,
		1, 0, 7, 0, 255, 255, 255, 255, 4, 0, 5, 0, 255, 255, 255, 255, 32, 0, 5, 0, 255, 255, 255, 255}
	return wantErrno(unix.EOPNOTSUPP, unix.Setxattr(dir, "system.posix_acl_default", list, 0))
}

func lease(b bait) outcome {
	path := filepath.Join(b[baitDir], fmt.Sprintf("lease%d", os.Getpid()))
	f, err := os.Create(path)
	if err != nil {
		return untried(cause(err))
	}
	defer os.Remove(path)
	defer f.Close()
	_, err = unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_WRLCK)
	return wantErrno(unix.EAGAIN, err)
}

// coreLimitZero expects that the change succeeds, which gpg needs, and has no effect: with
// setrlimit, prlimit64, and prlimit64 with an address whose low half is zero.
func coreLimitZero(bait) outcome {
	var before, after unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &before); err != nil {
		return untried(cause(err))
	}
	page, err := mapAt(1 << 32)
	if err != nil {
		return untried(cause(err))
	}
	zero := unix.Rlimit{}
	for _, try := range []func() error{
		func() error {
			_, err := raw(unix.SYS_SETRLIMIT, unix.RLIMIT_CORE, uintptr(unsafe.Pointer(&zero)))
			return err
		},
		func() error { return unix.Prlimit(0, unix.RLIMIT_CORE, &zero, nil) },
		func() error {
			_, err := raw(unix.SYS_PRLIMIT64, 0, unix.RLIMIT_CORE, page, 0)
			return err
		},
	} {
		if err := try(); err != nil {
			return escaped("it fails with %s, which programs take for a reason to give up", cause(err))
		}
	}
	if err := unix.Prlimit(0, unix.RLIMIT_CORE, &zero, &after); err == nil {
		return escaped("with the former limit asked for, it is said to have worked")
	}
	if err := unix.Getrlimit(unix.RLIMIT_CORE, &after); err != nil || after != before {
		return escaped("%v became %v", before, after)
	}
	return blocked("it is still %d", before.Cur)
}

// mapAt maps a page of zeros at an address.
func mapAt(address uintptr) (uintptr, error) {
	return raw(unix.SYS_MMAP, address, 4096, unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_FIXED_NOREPLACE, none, 0)
}
