package mounts

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// NS is the mount namespace of a box and its root directory, held by
// descriptor: it stays the same box when a process id is used again.
type NS struct {
	mnt, root *os.File
}

// OpenNS opens the namespace of process pid. Only the caller can tell that pid
// still is the process that is meant: by a pidfd that shows it alive afterwards.
// The caller closes the NS.
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
func (ns NS) Close() error {
	err := ns.mnt.Close()
	if rootErr := ns.root.Close(); err == nil {
		err = rootErr
	}
	return err
}

// enter runs fn inside the mount namespace, on a thread of its own. Paths and
// /proc mean those of the box there, so fn uses descriptors.
func (ns NS) enter(fn func() error) error {
	return onThread(func() error {
		if err := linux.Setns(ns.mnt, unix.CLONE_NEWNS); err != nil {
			return err
		}
		return fn()
	})
}

// onThread is linux.OnThrowawayThread, but never on the main thread. The Go
// runtime cannot end that one and parks it for good, so the box's namespace
// would stay alive with this process, and /proc/self would show the box.
func onThread(fn func() error) error {
	for {
		isMain := false
		err := linux.OnThrowawayThread(func() error {
			if isMain = unix.Gettid() == unix.Getpid(); isMain {
				return nil
			}
			return fn()
		})
		// A main thread that was hit is parked now and not hit again.
		if err != nil || !isMain {
			return err
		}
	}
}

// beneath opens a path of the box as O_PATH. It crosses mounts but no symlink,
// and cannot leave the root.
func (ns NS) beneath(unsafePath string) (*os.File, error) {
	return linux.Openat2(ns.root, unsafePath, unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}
