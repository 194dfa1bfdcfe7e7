// Package fdkind tells which files can be passed on to a command of strangers. It is linked into the part of boxd that has
// to start fast, so it is apart from package linux.
package fdkind

import (
	"os"

	"golang.org/x/sys/unix"
)

// IsPassable reports whether f can become descriptor n of a command: a pipe, /dev/null, or, as
// descriptor 0, a regular file opened for reading only. Through any other file the command could do more than read
// its input or add to its output: truncate the file, lock it, read what a terminal's user types to other programs, or
// receive descriptors from a socket.
func IsPassable(f *os.File, n int) bool {
	var st unix.Stat_t
	if f == nil || unix.Fstat(int(f.Fd()), &st) != nil {
		return false
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFIFO:
		return true
	case unix.S_IFREG:
		flags, err := unix.FcntlInt(f.Fd(), unix.F_GETFL, 0)
		return n == 0 && err == nil && flags&unix.O_ACCMODE == unix.O_RDONLY
	}
	return isNull(&st)
}

// IsFUSE reports whether f is a regular file of a FUSE file system, whose server close(2) asks; so does this, and may
// wait for it. Of a file of which nothing can be found out it reports true.
func IsFUSE(f *os.File) bool {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return err != nil
	}
	var fs unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &fs) != nil || fs.Type == unix.FUSE_SUPER_MAGIC
}

// IsNull reports whether f is /dev/null.
func IsNull(f *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && isNull(&st)
}

func isNull(st *unix.Stat_t) bool {
	return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3)
}

// kcmpFile is KCMP_FILE of <linux/kcmp.h>.
const kcmpFile = 0

// AreSame reports whether two descriptors share one open file description, as after
// "2>&1". It returns false on a kernel without kcmp(2).
func AreSame(f, g *os.File) bool {
	pid := uintptr(os.Getpid())
	order, _, errno := unix.Syscall6(unix.SYS_KCMP, pid, pid, kcmpFile, f.Fd(), g.Fd(), 0)
	return errno == 0 && order == 0
}
