package linux

import (
	"os"
	"runtime"
	"syscall"
	"time"

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

// Pauses of EndTerminalInput.
const (
	minEndPause = 20 * time.Millisecond
	maxEndPause = time.Second
)

// EndTerminalInput has the programs at the terminal behind master, which does not
// block, see the end of their input, until gone is closed. It calls begun, if that is
// not nil, after the first attempt and returns when the terminal is closed or gone is.
//
// A terminal cannot be at its end as a pipe can: its VEOF character ends one read. The
// kernel makes a NUL byte of a VEOF that is unread when a program turns canonical mode
// off (n_tty_set_termios), which a shell does as it starts. So the character is sent
// again: once after each change of the mode, when it is a key like others, and every
// now and then in canonical mode, for later reads.
func EndTerminalInput(master syscall.RawConn, gone <-chan struct{}, begun func(error)) {
	canonicalBefore, first := false, true
	pause := minEndPause
	for {
		canonical, veof := terminalMode(master)
		if first || canonical || canonicalBefore {
			err := writeByte(master, veof)
			if first && begun != nil {
				begun(err)
			}
			if err != nil {
				return
			}
		}
		if canonical != canonicalBefore {
			pause = minEndPause
		}
		canonicalBefore, first = canonical, false
		select {
		case <-time.After(pause):
			pause = min(2*pause, maxEndPause)
		case <-gone:
			return
		}
	}
}

// terminalMode says whether a terminal is in canonical mode and what its VEOF character
// is, ^D if it has none (termios(3)).
func terminalMode(master syscall.RawConn) (canonical bool, veof byte) {
	const ctrlD = 4
	veof = ctrlD
	_ = master.Control(func(fd uintptr) {
		t, err := unix.IoctlGetTermios(int(fd), unix.TCGETS)
		if err != nil {
			return
		}
		canonical = t.Lflag&unix.ICANON != 0
		if t.Cc[unix.VEOF] != 0 {
			veof = t.Cc[unix.VEOF]
		}
	})
	return canonical, veof
}

// writeByte waits for room.
func writeByte(f syscall.RawConn, b byte) error {
	var err error
	cerr := f.Write(func(fd uintptr) bool {
		err = Retry(func() error {
			_, err := unix.Write(int(fd), []byte{b})
			return err
		})
		return err != unix.EAGAIN
	})
	if cerr != nil {
		return cerr
	}
	return err
}
