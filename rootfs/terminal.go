package rootfs

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// MaxPTYs is how many terminals a box may have open at once. The host has a pool of
// kernel.pty.max terminals, 4,096 by default. The kernel reserves the last
// kernel.pty.reserve of them for its first mount namespace, in which no box is
// (devpts_new_index in fs/devpts/inode.c). So boxes cannot take the last terminal of the
// host, however many boxes there are; and 192 boxes that each have all their terminals open
// leave none for other boxes.
const MaxPTYs = 16

// ErrNoTerminal means that the box, or all boxes together, have as many terminals open as
// they may.
var ErrNoTerminal = errors.New("no terminal is left")

// devpts mounts the box's own devpts instance.
func (b *builder) devpts() error {
	m, err := linux.NewMount("devpts", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NOEXEC,
		linux.Option{Key: "newinstance"}, linux.Option{Key: "ptmxmode", Value: "0666"}, linux.Option{Key: "mode", Value: "0620"},
		linux.Option{Key: "gid", Value: strconv.Itoa(b.o.IDBase + ttyGID)}, linux.Option{Key: "max", Value: strconv.Itoa(MaxPTYs)})
	if err != nil {
		return err
	}
	b.root.pts = m
	return attach(m, b.devices, "pts")
}

// openPTY opens a terminal for a user, given by host IDs.
func openPTY(pts *os.File, uid, gid int, rows, cols uint16) (master, slave *os.File, err error) {
	master, slave, err = linux.OpenPTY(pts)
	if errors.Is(err, unix.ENOSPC) {
		return nil, nil, fmt.Errorf("opening a terminal: %w: %s", ErrNoTerminal, readPool().fault())
	}
	if err != nil {
		return nil, nil, fmt.Errorf("opening a terminal: %w", err)
	}
	size := &unix.Winsize{Row: rows, Col: cols}
	err = linux.Retry(func() error { return unix.IoctlSetWinsize(int(master.Fd()), unix.TIOCSWINSZ, size) })
	if err == nil {
		err = linux.Retry(func() error { return unix.Fchown(int(slave.Fd()), uid, gid) })
	}
	if err != nil {
		master.Close()
		slave.Close()
		return nil, nil, fmt.Errorf("setting up a terminal: %w", err)
	}
	return master, slave, nil
}

// ptyPool is the host's pool of terminals, from /proc/sys/kernel/pty.
type ptyPool struct{ open, max, reserve int }

func readPool() (p ptyPool) {
	for name, n := range map[string]*int{"nr": &p.open, "max": &p.max, "reserve": &p.reserve} {
		text, _ := os.ReadFile("/proc/sys/kernel/pty/" + name) // else 0
		*n, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	return p
}

// fault says why the kernel has refused a terminal: the pool or the box has none left.
func (p ptyPool) fault() string {
	if p.max > 0 && p.open+1 >= p.max-p.reserve {
		return fmt.Sprintf("%d are open on this host, and of kernel.pty.max, %d, the last %d are not for boxes: close some, or raise that sysctl", p.open, p.max, p.reserve)
	}
	return fmt.Sprintf("the box has %d open, the most it may: close one", MaxPTYs)
}
