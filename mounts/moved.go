package mounts

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// DetachMoved is Detach for a mount that is not at its target any more because the
// box renamed a directory above it, in another mount: a mount goes with what it is
// mounted on. pid is the process that ns was opened from; it must not have been
// reaped. A mount that is gone, because somebody removed what it was mounted on, is no
// error. The box should be frozen: else it may rename on and on, which ends in
// ErrNotAttached.
func DetachMoved(ns NS, pid int, id MountID) error {
	table, err := openTable(pid)
	if err != nil {
		return err
	}
	defer table.Close()
	fds, err := openFDs()
	if err != nil {
		return err
	}
	defer fds.Close()
	return ns.enter(func() error {
		line, err := lineOf(ns, id)
		if errors.Is(err, errGone) {
			return nil
		}
		if err != nil {
			return err
		}
		m, ok, err := linux.FindMountInfo(table, line)
		if err != nil || !ok && line == uint64(id) {
			return err
		}
		point := m.Point
		f, err := ns.walk(point)
		if err != nil {
			return notAttached(point, err)
		}
		defer f.Close()
		if got, err := mountID(f); err != nil || got != id {
			return notAttached(point, err)
		}
		return unmountFile(fds, f, point)
	})
}

// IsMounted says whether the mount id is in ns, at its target or elsewhere. pid is as
// for DetachMoved.
func IsMounted(ns NS, pid int, id MountID) (is bool, err error) {
	line := uint64(0)
	err = ns.enter(func() error {
		line, err = lineOf(ns, id)
		return err
	})
	if errors.Is(err, errGone) {
		return false, nil
	}
	if err != nil || line != uint64(id) {
		return err == nil, err
	}
	table, err := openTable(pid) // before Linux 6.8
	if err != nil {
		return false, err
	}
	defer table.Close()
	_, is, err = linux.FindMountInfo(table, line)
	return is, err
}

// openTable opens the list of mounts in the namespace of a process, with paths from its
// root.
func openTable(pid int) (*os.File, error) { return os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid)) }

// errGone: there is no such mount.
var errGone = errors.New("it is mounted nowhere")

// lineOf is the number that mountinfo has for a mount. Before Linux 6.8 that is its id,
// and says nothing about whether it is there.
func lineOf(ns NS, id MountID) (uint64, error) {
	st, err := linux.Statx(ns.root, unix.STATX_MNT_ID_UNIQUE)
	if err != nil || st.Mask&unix.STATX_MNT_ID_UNIQUE == 0 {
		return uint64(id), err
	}
	line, err := linux.OldMountID(uint64(id))
	if errors.Is(err, unix.ENOENT) {
		return 0, errGone
	}
	return line, err
}

// walk opens a path of any length as beneath does.
func (ns NS) walk(unsafePath string) (*os.File, error) {
	at := ns.root
	for name := range strings.SplitSeq(strings.Trim(unsafePath, "/"), "/") {
		next, err := linux.Openat2(at, name, unix.OpenHow{
			Flags:   unix.O_PATH | unix.O_NOFOLLOW,
			Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
		})
		closeUnless(at, ns.root)
		if err != nil {
			return nil, err
		}
		at = next
	}
	return at, nil
}

// openFDs opens the directory of this process's descriptors, for unmountFile. In a
// box there is no such directory.
func openFDs() (*os.File, error) {
	return linux.Openat2(nil, "/proc/self/fd", unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
}

// unmountFile takes away the mount of f, whatever its path is. umount2 knows paths
// only: that of a descriptor, in fds, is one, and it leads to the mount itself.
func unmountFile(fds, f *os.File, name string) error {
	if err := fchdir(fds); err != nil {
		return err
	}
	if err := linux.Unmount(strconv.Itoa(int(f.Fd())), unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detaching %q: %w", name, err)
	}
	return nil
}
