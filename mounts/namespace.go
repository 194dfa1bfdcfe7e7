package mounts

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// NS is the mount namespace and the root directory of a box. It holds descriptors, so it
// means the same box even if the PID is reused.
type NS struct {
	mnt, root *os.File
}

// OpenNS opens the namespace of process pid. The caller must make sure that pid still is
// the intended process, by means of a pidfd that shows it alive afterwards. The caller
// closes the NS.
func OpenNS(pid int) (NS, error) {
	proc := fmt.Sprintf("/proc/%d", pid)
	mnt, err := linux.Openat2(nil, proc+"/ns/mnt", unix.OpenHow{Flags: unix.O_RDONLY})
	if err != nil {
		return NS{}, fmt.Errorf("mount namespace: %w", err)
	}
	root, err := linux.Openat2(nil, proc+"/root", unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
	if err != nil {
		mnt.Close()
		return NS{}, fmt.Errorf("root directory: %w", err)
	}
	return NS{mnt: mnt, root: root}, nil
}

// Close closes the descriptors. Mounts in the namespace stay.
func (ns NS) Close() error { return errors.Join(ns.mnt.Close(), ns.root.Close()) }

// enter runs fn inside the mount namespace, on a separate thread. Paths and /proc are
// those of the box there, so fn must use descriptors.
func (ns NS) enter(fn func() error) error {
	return linux.OnThrowawayThread(func() error {
		if err := linux.Setns(ns.mnt, unix.CLONE_NEWNS); err != nil {
			return err
		}
		return fn()
	})
}

// beneath opens a path of the box as O_PATH. It crosses mounts but no symlinks, and cannot
// leave the root.
func (ns NS) beneath(unsafePath string) (*os.File, error) {
	return linux.Openat2(ns.root, unsafePath, unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}
