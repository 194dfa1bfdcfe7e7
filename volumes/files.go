package volumes

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// nameless creates a file without a name on the file system of dir.
func nameless(dir *os.File) (*os.File, error) {
	fd, err := unix.Openat(int(dir.Fd()), ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "open(O_TMPFILE)", Path: dir.Name(), Err: err}
	}
	return os.NewFile(uintptr(fd), dir.Name()+" (nameless)"), nil
}

// openFile opens a regular file in dir that only this user can access: not a symlink, and
// without a second name.
func openFile(dir *os.File, name string, flags int) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_NOFOLLOW | unix.O_NONBLOCK),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o600
	}
	f, err := linux.Openat2(dir, name, how)
	if err != nil {
		return nil, err
	}
	st, err := linux.Fstat(f)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1 || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0) {
		err = refuse("file", dir.Name()+"/"+name, "must be a regular file of user %d with mode 0600 and one name, but has mode %#o, owner %d and %d names",
			os.Geteuid(), st.Mode, st.Uid, st.Nlink)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// idText formats id for a file name.
func idText(id uint32) string { return strconv.FormatUint(uint64(id), 10) }
