package linux

import (
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// TTYBuffer exceeds, in bytes, what the kernel buffers of a terminal's output: 8 KiB in the
// port (pty_common_install) and 4 KiB in the line discipline. FIONREAD reports only the latter.
const TTYBuffer = 16 << 10

// OpenPTY opens a new pseudoterminal of the devpts instance whose root
// directory is pts (O_PATH will do). The slave is opened through the master
// (TIOCGPTPEER, Linux 4.13), so that no other file can take its place.
// The caller owns both files. Neither becomes a controlling terminal.
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
		return int(peer), errnoError(errno)
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

// EndTerminalInput makes programs at the terminal behind master, which must be
// non-blocking, read the end of their input. It calls begun, unless nil, after the first
// attempt, and returns when the terminal or gone is closed.
//
// Unlike a pipe, a terminal has no permanent end of file: its VEOF character ends a single
// read. If a program turns canonical mode off before it has read the VEOF, as a shell does
// when it starts, the kernel turns the VEOF into a NUL byte (n_tty_set_termios). So
// EndTerminalInput sends the character repeatedly: once after each change of the mode,
// when it counts as an ordinary key, and from time to time in canonical mode, for later
// reads.
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

// terminalMode reports whether a terminal is in canonical mode and returns its VEOF
// character, ^D if it has none (termios(3)).
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

// writeByte waits until there is room for b.
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
