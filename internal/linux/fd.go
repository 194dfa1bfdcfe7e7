package linux

import (
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// Retry calls fn until it returns something other than EINTR.
func Retry(fn func() error) error {
	for {
		if err := fn(); err != unix.EINTR {
			return err
		}
	}
}

// errnoError is errno as an error, nil for 0.
func errnoError(errno unix.Errno) error {
	if errno == 0 {
		return nil
	}
	return errno
}

// retryFd is Retry for calls that return a descriptor.
func retryFd(fn func() (int, error)) (fd int, err error) {
	err = Retry(func() (err error) {
		fd, err = fn()
		return err
	})
	return fd, err
}

// FdPath names an open descriptor as a path of this process. The path is valid
// only while f is open; the caller must keep f alive.
func FdPath(f *os.File) string {
	return "/proc/self/fd/" + strconv.Itoa(int(f.Fd()))
}

// ProgramPath names an open descriptor as the path of a program for os/exec. FdPath would not do:
// before it executes the program, the child moves the descriptors that it passes on to the numbers
// after the highest of them, and so may overwrite its own copy of f (golang/go#61751). This path
// names the descriptor of this process. The path is valid only while f is open.
func ProgramPath(f *os.File) (string, error) {
	// The number of this process in the PID namespace of /proc, which may be another one's.
	self, err := os.Readlink("/proc/self")
	return "/proc/" + self + "/fd/" + strconv.Itoa(int(f.Fd())), err
}

// Openat2 opens unsafePath beneath dir with the RESOLVE_* rules of how.
// A nil dir means the current directory (or the root, for absolute paths).
// O_CLOEXEC is always added. The caller owns the returned file.
func Openat2(dir *os.File, unsafePath string, how unix.OpenHow) (*os.File, error) {
	how.Flags |= unix.O_CLOEXEC
	dirfd := unix.AT_FDCWD
	if dir != nil {
		dirfd = int(dir.Fd())
	}
	fd, err := retryFd(func() (int, error) {
		for range 32 {
			// EAGAIN: a rename raced with a RESOLVE_IN_ROOT or RESOLVE_BENEATH
			// walk; openat2(2) asks the caller to retry.
			fd, err := unix.Openat2(dirfd, unsafePath, &how)
			if err != unix.EAGAIN {
				return fd, err
			}
		}
		return -1, unix.EAGAIN
	})
	runtime.KeepAlive(dir)
	if err != nil {
		return nil, &os.PathError{Op: "openat2", Path: unsafePath, Err: err}
	}
	return os.NewFile(uintptr(fd), unsafePath), nil
}

// Reopen opens the file behind an O_PATH descriptor with new flags.
// O_CLOEXEC is always added. The caller owns the returned file.
func Reopen(f *os.File, flags int) (*os.File, error) {
	path := FdPath(f)
	fd, err := retryFd(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, 0) })
	runtime.KeepAlive(f)
	if err != nil {
		return nil, &os.PathError{Op: "reopen", Path: f.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}

// Fstat returns the status of an open descriptor (O_PATH included).
func Fstat(f *os.File) (unix.Stat_t, error) {
	var st unix.Stat_t
	err := Retry(func() error { return unix.Fstat(int(f.Fd()), &st) })
	return st, pathError("fstat", f, "", err)
}

// Syncfs writes everything that is cached of the file system that f is on to its device.
func Syncfs(f *os.File) error {
	return pathError("syncfs", f, "", Retry(func() error { return unix.Syncfs(int(f.Fd())) }))
}

// Clone makes the empty file to a copy of from that shares its blocks (ioctl_ficlone(2)).
// EOPNOTSUPP, EXDEV, EINVAL and ENOTTY mean that their file systems cannot do that.
func Clone(to, from *os.File) error {
	_, err := ioctlInt(to, "FICLONE", unix.FICLONE, from.Fd())
	runtime.KeepAlive(from)
	return err
}

// Fstatfs returns the usage and the ST_* flags of the file system that f is on (O_PATH
// included). The flags are those of its mount and of its file system together.
func Fstatfs(f *os.File) (unix.Statfs_t, error) {
	var st unix.Statfs_t
	err := Retry(func() error { return unix.Fstatfs(int(f.Fd()), &st) })
	return st, pathError("fstatfs", f, "", err)
}

// KeepSize is the mode of [Fallocate] that leaves the file's size as it is.
const KeepSize = unix.FALLOC_FL_KEEP_SIZE

// Fallocate allocates disk space for the first size bytes of f. A mode of 0 makes the file
// that long if it is shorter.
func Fallocate(f *os.File, mode uint32, size int64) error {
	err := Retry(func() error { return unix.Fallocate(int(f.Fd()), mode, 0, size) })
	return pathError("fallocate", f, "", err)
}

// Dup returns another descriptor of f's open file description. The caller owns it.
func Dup(f *os.File) (*os.File, error) { return DupAs(f, f.Name()) }

// DupAs is Dup with another name for messages: the name of an inherited or received
// descriptor says nothing.
func DupAs(f *os.File, name string) (*os.File, error) {
	fd, err := retryFd(func() (int, error) { return unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0) })
	runtime.KeepAlive(f)
	if err != nil {
		return nil, os.NewSyscallError("fcntl(F_DUPFD_CLOEXEC)", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// SetPipeSize sets the size of a pipe in bytes, which the kernel rounds up. EPERM: the user's share of memory
// for pipes is used up (pipe(7)).
func SetPipeSize(f *os.File, size int) error {
	_, err := unix.FcntlInt(f.Fd(), unix.F_SETPIPE_SZ, size)
	runtime.KeepAlive(f)
	return os.NewSyscallError("fcntl(F_SETPIPE_SZ)", err)
}

// CloseAll closes files; nil ones are fine.
func CloseAll(files []*os.File) {
	for _, f := range files {
		f.Close()
	}
}

// SocketPair returns the two ends of a Unix stream socket. The caller owns both.
func SocketPair() (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	return os.NewFile(uintptr(fds[0]), "socket"), os.NewFile(uintptr(fds[1]), "socket"), nil
}

// Flock is flock(2). The lock belongs to the open file description of f.
func Flock(f *os.File, how int) error {
	err := Retry(func() error { return unix.Flock(int(f.Fd()), how) })
	return pathError("flock", f, "", err)
}

// Fsetxattr sets an extended attribute of f.
func Fsetxattr(f *os.File, name string, value []byte) error {
	err := Retry(func() error { return unix.Fsetxattr(int(f.Fd()), name, value, 0) })
	return pathError("fsetxattr", f, "", err)
}
