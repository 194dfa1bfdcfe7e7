package rootfs

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// Attributes of mounts. Device files are needed only in the box's /dev, and set-uid
// programs nowhere.
const (
	attrDefault  = unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV
	attrReadOnly = attrDefault | unix.MOUNT_ATTR_RDONLY
)

// openDir opens the directory unsafePath beneath root with O_PATH. A symlink
// anywhere in the path is an error (ELOOP): an image may have put a symlink in place of
// a mount point (CVE-2026-41579).
func openDir(root *os.File, unsafePath string) (*os.File, error) {
	return linux.Openat2(root, unsafePath, unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
}

// attach moves the detached mount tree onto the directory path beneath root.
func attach(tree, root *os.File, path string) error {
	dir, err := openDir(root, path)
	if err != nil {
		return fmt.Errorf("mount point %q: %w", path, err)
	}
	defer dir.Close()
	return linux.MoveMount(tree, dir, "")
}

// clone returns a detached copy of the mount that dir lies on, with dir as its
// root, and of all mounts below it. dir must be attached in the caller's namespace:
// detached mounts can be copied only since Linux 6.15.
func clone(dir *os.File) (*os.File, error) {
	return linux.OpenTree(dir, "", unix.OPEN_TREE_CLONE|unix.AT_EMPTY_PATH|unix.AT_RECURSIVE)
}

// cloneTo attaches a copy of dir and its submounts at path beneath root. Before that, it
// sets attrs on all of them, unless attrs is 0.
func cloneTo(dir, root *os.File, path string, attrs uint64) error {
	tree, err := clone(dir)
	if err != nil {
		return err
	}
	defer tree.Close()
	if attrs != 0 {
		if err := linux.MountSetattr(tree, true, unix.MountAttr{Attr_set: attrs}); err != nil {
			return err
		}
	}
	return attach(tree, root, path)
}
