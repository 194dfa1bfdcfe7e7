package native

import (
	"io"
	"os"
	"reflect"

	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// direct reports whether a caller's file can become the command's own descriptor n. Pipes,
// /dev/null, and regular files opened for reading only can. Through any other file the
// command could do more than read its input or add to its output: truncate the file, lock
// it, read what a terminal's user types to other programs, or receive descriptors from a
// socket.
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

// sameOutput reports whether two writers are the same. Then the command gets one pipe for
// both, which keeps the order of its output, and only one goroutine calls the writer.
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

// sameDescription reports whether two descriptors share one open file description, as after
// "2>&1". It returns false on a kernel without kcmp(2).
func sameDescription(f, g *os.File) bool {
	pid := os.Getpid()
	order, err := linux.Kcmp(linux.KcmpFile, pid, int(f.Fd()), pid, int(g.Fd()))
	return err == nil && order == 0
}
