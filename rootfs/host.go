package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/internal/linux"
)

// systemDirs are the directories of the host in the image "host". If one of them is a
// symlink on the host, it is the same symlink in the box.
var systemDirs = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// Host is the image "host": what all boxes of one launcher share. It is safe for
// concurrent use. Its opener owns it.
type Host struct {
	dir   string
	trees []tree
	links []link
	// reachable means that other processes can take over its roots, see OpenLive.
	reachable bool
	figures   *hostFigures
	// byName is set once this kernel has refused layers by descriptor, see merge.
	byName atomic.Bool
}

// tree is a mount of the template that every box gets a clone of.
type tree struct {
	name string
	root *os.File // O_PATH, attached in the launcher's namespace
}

// link is a symlink that every box has.
type link struct{ name, target string }

// templateSize bounds the template, which holds copies of small files of /etc.
const templateSize = "16m"

// OpenHost creates dir, which must not exist yet, and in it the template of the image
// "host". The calling process must be in a private mount namespace.
//
// OpenHost copies the public part of /etc to the directory cache, once per state of /etc, for
// all callers with the same cache. It creates this directory if necessary. If cache is empty,
// or somebody other than root could write to it, the copy is in the template instead.
func OpenHost(dir, cache string) (*Host, error) { return buildHost(dir, cache, "/", false) }

// OpenReachableHost is OpenHost for boxes that another process can take over with
// [OpenLive] when the one that built them is gone.
func OpenReachableHost(dir, cache string) (*Host, error) { return buildHost(dir, cache, "/", true) }

// buildHost builds the template from the system below root. Tests have their own system.
func buildHost(dir, cache, root string, reachable bool) (host *Host, err error) {
	var undo cleanup.Stack
	defer undo.Undo(&err)
	wrap := func(err error) error { return fmt.Errorf("preparing image \"host\": %w", err) }

	top, err := mountTop(dir, &undo, linux.Option{Key: "size", Value: templateSize}, linux.Option{Key: "mode", Value: "0755"})
	if err != nil {
		return nil, wrap(err)
	}
	defer top.Close()
	cpuinfo, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return nil, wrap(err)
	}
	h := &Host{dir: dir, reachable: reachable, figures: &hostFigures{processors: parseCPUInfo(cpuinfo)}}
	undo.Push(h.closeTrees)
	if err := h.addSystem(top, root); err != nil {
		return nil, wrap(err)
	}
	if err := h.addEtc(top, root, cache); err != nil {
		return nil, wrap(err)
	}
	undo.Release()
	return h, nil
}

// mountTop creates dir, attaches a new tmpfs to it and returns the root of the tmpfs. The
// caller owns it.
func mountTop(dir string, undo *cleanup.Stack, options ...linux.Option) (*os.File, error) {
	// A box's first process resolves the path of its root as an unprivileged
	// user, so it must be able to search every directory in the path.
	if err := os.Mkdir(dir, 0o711); err != nil {
		return nil, err
	}
	undo.Push(func() error { return os.Remove(dir) })
	top, err := linux.NewMount("tmpfs", attrDefault&^unix.MOUNT_ATTR_NODEV, options...)
	if err != nil {
		return nil, err
	}
	if err := linux.MoveMount(top, nil, dir); err != nil {
		top.Close()
		return nil, err
	}
	undo.Push(func() error { return linux.Unmount(dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) })
	return top, nil
}

// addSystem clones the system directories of the host, read-only.
func (h *Host) addSystem(top *os.File, root string) error {
	for _, name := range systemDirs {
		path := filepath.Join(root, name)
		info, err := os.Lstat(path)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return err
		case info.Mode()&fs.ModeSymlink != 0:
			target, err := os.Readlink(path)
			if err != nil {
				return err
			}
			h.links = append(h.links, link{name, target})
		case info.IsDir():
			if err := h.addTree(top, name, path); err != nil {
				return err
			}
		}
	}
	return nil
}

// addTree attaches a read-only clone of the host directory path to the template.
func (h *Host) addTree(top *os.File, name, path string) error {
	tree, err := linux.OpenTree(nil, path, unix.OPEN_TREE_CLONE|unix.AT_RECURSIVE|unix.AT_SYMLINK_NOFOLLOW)
	if err != nil {
		return err
	}
	defer tree.Close()
	if err := linux.MkdirAt(top, name, 0o755); err != nil {
		return err
	}
	return h.keep(top, name, tree, attrReadOnly)
}

// keep attaches mount at name of the template and remembers its root.
func (h *Host) keep(top *os.File, name string, mount *os.File, attrs uint64) error {
	// Private, so that a later mount below the host's directory does not appear in boxes.
	attr := unix.MountAttr{Attr_set: attrs, Propagation: unix.MS_PRIVATE}
	if err := linux.MountSetattr(mount, true, attr); err != nil {
		return err
	}
	if err := attach(mount, top, name); err != nil {
		return err
	}
	root, err := openDir(top, name)
	if err != nil {
		return err
	}
	h.trees = append(h.trees, tree{name, root})
	return nil
}

// tree returns the tree called name, which must exist.
func (h *Host) tree(name string) tree {
	return h.trees[slices.IndexFunc(h.trees, func(t tree) bool { return t.name == name })]
}

// Close removes the template. Roots that were built from it stay as they are.
func (h *Host) Close() error {
	if h.dir == "" {
		return nil
	}
	err := errors.Join(h.closeTrees(), linux.Unmount(h.dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW), os.Remove(h.dir))
	h.dir = ""
	return err
}

func (h *Host) closeTrees() error {
	for _, t := range h.trees {
		t.root.Close()
	}
	h.trees = nil
	return nil
}
