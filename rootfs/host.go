package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/internal/linux"
)

// systemDirs are the directories of the host that are the image "host". What of
// /bin, /lib and so on is a symlink on the host is the same symlink in the box.
var systemDirs = []string{"usr", "bin", "sbin", "lib", "lib32", "lib64", "libx32"}

// Host is the image "host": what all boxes of one launcher share. It is safe for
// concurrent use and owned by whoever opened it.
type Host struct {
	dir   string
	trees []tree
	links []link
	// reachable: processes that did not build a root go on with it, see OpenLive.
	reachable bool
	figures   *hostFigures
}

// tree is a mount of the template that every box gets a clone of.
type tree struct {
	name string
	root *os.File // O_PATH, attached in the launcher's namespace
}

// link is a symlink that every box has.
type link struct{ name, target string }

// templateSize bounds what the template holds: copies of small files of /etc.
const templateSize = "16m"

// OpenHost builds the template of the image "host" in dir, which it creates and
// which must not exist yet. The calling process must be in a private mount
// namespace.
//
// The public part of /etc is copied into the directory cache once per state of /etc, for all
// who name the same one; it is made if needed and must be root's. Otherwise, and if cache
// is empty, the copy is made in the template.
func OpenHost(dir, cache string) (*Host, error) { return buildHost(dir, cache, "/", false) }

// OpenReachableHost is OpenHost for boxes that other processes go on with: with
// [OpenLive], when the one that built them is gone.
func OpenReachableHost(dir, cache string) (*Host, error) { return buildHost(dir, cache, "/", true) }

// buildHost builds the template of a system that lives below root, so that tests can
// bring their own.
func buildHost(dir, cache, root string, reachable bool) (host *Host, err error) {
	var undo cleanup.Stack
	defer func() { undo.Undo(&err) }()
	wrap := func(err error) error { return fmt.Errorf("preparing image \"host\": %w", err) }

	top, err := mountTop(dir, &undo, linux.Option{Key: "size", Value: templateSize}, linux.Option{Key: "mode", Value: "0755"})
	if err != nil {
		return nil, wrap(err)
	}
	defer top.Close()
	h := &Host{dir: dir, reachable: reachable}
	if h.figures, err = openHostFigures(); err != nil {
		return nil, wrap(err)
	}
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

// mountTop creates dir, attaches a new tmpfs to it and returns the root of that,
// owned by the caller.
func mountTop(dir string, undo *cleanup.Stack, options ...linux.Option) (*os.File, error) {
	// A box's first process resolves the path of its root as an unprivileged
	// user, so it must be able to search every directory on the way.
	if err := os.Mkdir(dir, 0o711); err != nil {
		return nil, err
	}
	undo.Push(func() error { return os.Remove(dir) })
	top, err := linux.NewMount("tmpfs", attrDefault&^unix.MOUNT_ATTR_NODEV, options...)
	if err != nil {
		return nil, err
	}
	if err := linux.MoveMount(top, nil, dir, 0); err != nil {
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
	// Private, lest a later mount below the host's directory shows up in boxes.
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

// tree returns the tree called name, which exists.
func (h *Host) tree(name string) tree {
	return h.trees[slices.IndexFunc(h.trees, func(t tree) bool { return t.name == name })]
}

// Close takes the template away. Boxes that were built keep what they have.
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
