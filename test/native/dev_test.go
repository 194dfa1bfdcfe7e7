package native

import (
	"io"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
)

// lockDev takes every lock there is on everything in /dev that can be opened, says what
// it got, and holds it until the end of its stdin.
const lockDev = `
import errno, fcntl, os, sys, termios
def attempt(call, *args):
    try: call(*args); return "yes"
    except OSError as e: return errno.errorcode[e.errno]

# /dev/tty is there for who has a terminal.
master, slave = os.openpty()
attempt(os.setsid)
fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
lines = []
for top, dirs, names in os.walk("/dev"):
    if top == "/dev/pts": names = ["ptmx"]
    for path in [top] + [os.path.join(top, n) for n in names]:
        if os.path.islink(path): continue
        flags = os.O_NOCTTY | os.O_NONBLOCK
        try: fd = os.open(path, flags | os.O_RDWR)
        except (IsADirectoryError, PermissionError): fd = os.open(path, flags | os.O_RDONLY)
        flock = attempt(fcntl.flock, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        posix = "-" if os.path.isdir(path) else attempt(fcntl.lockf, fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        lines.append(f"{path} {flock} {posix}")
print("all", flush=True)
sys.stdin.read()
print("\n".join(lines), flush=True)
`

// TestDevLocks: a lock that one box takes on something in its /dev does not reach another
// box. For locks the inode counts, and not the mount.
func TestDevLocks(t *testing.T) {
	e := start(t)
	t.Run("read-only root", func(t *testing.T) {
		wantOwnDev(t, create(t, e, engine.Spec{}), create(t, e, engine.Spec{}))
	})
	t.Run("writable root", func(t *testing.T) {
		first, ok := createWritable(t, e, engine.Spec{})
		if !ok {
			return // this machine has none
		}
		wantOwnDev(t, first, create(t, e, engine.Spec{WritableRoot: true}))
	})
}

func wantOwnDev(t *testing.T, boxes ...engine.Box) {
	t.Helper()
	var outs []*screen
	var ends []io.Closer
	var commands []engine.Process
	for _, b := range boxes {
		out := newScreen()
		in, end := io.Pipe()
		c := python(lockDev)
		c.Stdin, c.Stdout = in, out
		commands = append(commands, begin(t, b, c))
		out.Await(t, "all\n")
		outs, ends = append(outs, out), append(ends, end)
	}
	var said []string
	for i, out := range outs {
		ends[i].Close()
		if _, err := commands[i].Wait(); err != nil {
			t.Fatal(err)
		}
		said = append(said, out.String())
	}
	for _, name := range []string{"null", "zero", "full", "random", "urandom", "tty", "pts/ptmx"} {
		if !strings.Contains(said[0], "/dev/"+name+" yes yes\n") {
			t.Errorf("no locks on /dev/%s: %s", name, said[0])
		}
	}
	for _, name := range []string{"", "/pts", "/shm", "/mqueue"} {
		if !strings.Contains(said[0], "/dev"+name+" yes -\n") {
			t.Errorf("no lock on /dev%s: %s", name, said[0])
		}
	}
	if said[0] != said[1] {
		t.Errorf("one box has\n%s\nand another one then\n%s", said[0], said[1])
	}
}
