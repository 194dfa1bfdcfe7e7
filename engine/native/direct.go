package native

import (
	"io"
	"os"
	"reflect"

	"golang.org/x/sys/unix"
)

// direct says whether a caller's file can be the command's own descriptor n: pipes,
// /dev/null, and regular files that are read only. Through another file the command
// could do more than read its input or add to its output: truncate what the file
// held before, lock it, read from a terminal what its user types to others, or
// receive descriptors from a socket.
func direct(f *os.File, n int) bool {
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
	case unix.S_IFCHR:
		return st.Rdev == unix.Mkdev(1, 3)
	}
	return false
}

// sameOutput says whether two writers are one: then the command gets one pipe for
// both, so that the order of what it writes is kept, and the writer has one caller.
func sameOutput(a, b io.Writer) bool {
	if a == nil || b == nil {
		return false
	}
	if f, ok := a.(*os.File); ok {
		if g, ok := b.(*os.File); ok {
			return f == g || sameDescription(f, g)
		}
	}
	t := reflect.TypeOf(a)
	return t.Comparable() && t == reflect.TypeOf(b) && a == b
}

// sameDescription says whether two descriptors are of one open file description,
// as after "2>&1" (kcmp(2)). A kernel without kcmp says no.
func sameDescription(f, g *os.File) bool {
	const kcmpFile = 0
	pid := uintptr(os.Getpid())
	r, _, errno := unix.Syscall6(unix.SYS_KCMP, pid, pid, kcmpFile, f.Fd(), g.Fd(), 0)
	return errno == 0 && r == 0
}
