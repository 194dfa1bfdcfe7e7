package linux

import (
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// TTYBuffer is more than the kernel keeps of a terminal's output, in bytes: 8 KiB in the
// port (pty_common_install) and 4 KiB in the line discipline, of which alone FIONREAD tells.
const TTYBuffer = 16 << 10

// OpenPTY opens a new pseudoterminal of the devpts instance whose root
// directory is pts (O_PATH will do). The slave is opened through the master
// (TIOCGPTPEER, Linux 4.13), so that nobody can put another file in its place.
// Both files are owned by the caller and become nobody's controlling terminal.
func OpenPTY(pts *os.File) (master, slave *os.File, err error) {
	const flags = unix.O_RDWR | unix.O_NOCTTY
	fd, err := retryFd(func() (int, error) {
		return unix.Openat(int(pts.Fd()), "ptmx", flags|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, nil, pathError("openat", pts, "ptmx", err)
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	if err := Retry(func() error { return unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0) }); err != nil {
		master.Close()
		return nil, nil, os.NewSyscallError("ioctl(TIOCSPTLCK)", err)
	}
	peer, err := retryFd(func() (int, error) {
		// The flags are the argument itself, which no wrapper in x/sys does.
		peer, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.TIOCGPTPEER, flags|unix.O_CLOEXEC)
		if errno != 0 {
			return -1, errno
		}
		return int(peer), nil
	})
	if err != nil {
		master.Close()
		return nil, nil, os.NewSyscallError("ioctl(TIOCGPTPEER)", err)
	}
	runtime.KeepAlive(pts)
	return master, os.NewFile(uintptr(peer), "pty slave"), nil
}
