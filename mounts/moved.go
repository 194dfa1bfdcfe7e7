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

// DetachMoved is Detach for a mount that is no longer at its target, because the box has
// renamed a directory above it, in another mount: a mount moves with its mount point. pid
// is the process that ns was opened from; it must not have been reaped. A mount that is
// gone, because its mount point was removed, is not an error. The box should be frozen;
// otherwise it may go on renaming, and the error is ErrNotAttached.
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

// IsMounted reports whether the mount id is in ns, at its target or elsewhere. pid is the
// same as for DetachMoved.
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

// openTable opens the list of mounts in the namespace of a process. Its paths start at the
// root of that process.
func openTable(pid int) (*os.File, error) { return os.Open(fmt.Sprintf("/proc/%d/mountinfo", pid)) }

// errGone means that a mount no longer exists.
var errGone = errors.New("it is mounted nowhere")

// lineOf returns the ID that mountinfo shows for a mount. Before Linux 6.8 this is id
// itself, whether or not the mount still exists.
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

// walk is beneath for a path of any length.
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

// openFDs opens the directory of this process's descriptors, for unmountFile. It cannot be
// opened after entering a box.
func openFDs() (*os.File, error) {
	return linux.Openat2(nil, "/proc/self/fd", unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
}

// unmountFile removes the mount of f, wherever it is. umount2 only takes paths: the name of
// the descriptor in fds is one, and leads to the mount itself.
func unmountFile(fds, f *os.File, name string) error {
	if err := linux.Fchdir(fds); err != nil {
		return err
	}
	if err := linux.Unmount(strconv.Itoa(int(f.Fd())), unix.MNT_DETACH); err != nil {
		return fmt.Errorf("detaching %q: %w", name, err)
	}
	return nil
}
