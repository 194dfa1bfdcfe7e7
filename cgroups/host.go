package cgroups

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/internal/linux"
)

// Mode says which kind of cgroup set-up a host has.
type Mode string

// The modes.
const (
	Unified Mode = "unified" // every controller that boxd uses is on cgroup2
	Hybrid  Mode = "hybrid"  // controllers on v1, and cgroup2 is mounted
	Legacy  Mode = "legacy"  // controllers on v1, cgroup2 mounted nowhere
)

// baseName is the directory that holds all boxes, at the root of each hierarchy.
const baseName = "boxd"

// controllers that boxd places limits with, in the order of [Slot.Tasks].
var controllers = []string{"memory", "pids", "cpu"}

// Host is the cgroup hierarchies of this machine, held open. It is safe for
// concurrent use.
type Host struct {
	mode Mode
	v2   *hierarchy
	v1   []*hierarchy // those that carry memory, pids or cpu
	// localPIDs: the cgroup2 super block counts a refused fork at the cgroup of
	// the forking task even where Linux 6.11 would not (pids_localevents).
	localPIDs bool

	kernel kernelMemory
}

// hierarchy is one mounted cgroup tree.
type hierarchy struct {
	dir         *os.File // O_PATH; its Name is the path for messages
	controllers []string
	v1          bool
	home        string // v1: where this process is, relative to dir
}

func (h *hierarchy) has(controller string) bool {
	return slices.Contains(h.controllers, controller)
}

// Detect finds and opens the hierarchies. A host without cgroup2 gets a private
// mount of it, which nobody else sees and which vanishes with the Host. The
// caller owns the Host.
func Detect() (_ *Host, err error) {
	mounted, err := linux.ReadMountInfo()
	if err != nil {
		return nil, err
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	return detect(mounted, parseOwnCgroups(string(own)))
}

func detect(mounted []linux.MountInfo, own map[string]string) (_ *Host, err error) {
	h := &Host{}
	var undo cleanup.Stack
	defer undo.Undo(&err)
	undo.Push(h.Close)
	for _, c := range controllers {
		if !slices.ContainsFunc(h.v1, func(t *hierarchy) bool { return t.has(c) }) {
			h.addV1(mounted, c, own[c])
		}
	}
	if err := h.addV2(mounted); err != nil {
		return nil, err
	}
	undo.Release()
	return h, nil
}

// addV1 opens the v1 hierarchy of a controller if there is one.
func (h *Host) addV1(mounted []linux.MountInfo, controller, own string) {
	for _, m := range mounted {
		if m.FSType != "cgroup" || !slices.Contains(m.Options, controller) {
			continue
		}
		dir, err := openTree(m.Point, unix.CGROUP_SUPER_MAGIC)
		if err != nil {
			continue // mounted over: another line may be reachable
		}
		t := &hierarchy{dir: dir, v1: true, home: relativeTo(m.Root, own)}
		for _, c := range controllers {
			if slices.Contains(m.Options, c) {
				t.controllers = append(t.controllers, c)
			}
		}
		h.v1 = append(h.v1, t)
		return
	}
}

// addV2 opens cgroup2, or mounts it privately.
func (h *Host) addV2(mounted []linux.MountInfo) error {
	h.mode = Unified
	if len(h.v1) > 0 {
		h.mode = Hybrid
	}
	// A mount of the whole tree is better than one of a part.
	slices.SortStableFunc(mounted, func(a, b linux.MountInfo) int { return len(a.Root) - len(b.Root) })
	for _, m := range mounted {
		if m.FSType != "cgroup2" {
			continue
		}
		dir, err := openTree(m.Point, unix.CGROUP2_SUPER_MAGIC)
		if err != nil {
			continue
		}
		h.localPIDs = slices.Contains(m.Options, "pids_localevents")
		return h.setV2(dir)
	}
	h.mode = Legacy
	// A new mount sets the options of the one cgroup2 super block anew, which is
	// why this is done only where nobody has mounted it.
	dir, err := linux.NewMount("cgroup2", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return fmt.Errorf("mounting cgroup2, which is mounted nowhere: %w", err)
	}
	return h.setV2(dir)
}

func (h *Host) setV2(dir *os.File) error {
	h.v2 = &hierarchy{dir: dir}
	list, err := linux.ReadFileAt(dir, "cgroup.controllers", maxFile)
	h.v2.controllers = strings.Fields(list)
	return err
}

// openTree opens the directory path if it is of the file system type magic.
func openTree(path string, magic int64) (*os.File, error) {
	dir, err := linux.Openat2(nil, path, unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
	if err != nil {
		return nil, err
	}
	var st unix.Statfs_t
	err = linux.Retry(func() error { return unix.Fstatfs(int(dir.Fd()), &st) })
	if err == nil && st.Type != magic {
		err = unix.EMEDIUMTYPE
	}
	if err != nil {
		dir.Close()
		return nil, &os.PathError{Op: "open cgroup tree", Path: path, Err: err}
	}
	return dir, nil
}

// relativeTo turns the path of a cgroup into one beneath a mount of root. What
// does not lie below root is unreachable: the root itself then has to do.
func relativeTo(root, path string) string {
	rel, err := filepath.Rel(root, path)
	if err != nil || rel == ".." || strings.HasPrefix(rel, "../") {
		return "."
	}
	return rel
}

// Mode says which kind of host this is.
func (h *Host) Mode() Mode { return h.mode }

// Mountpoint returns where the v1 hierarchy of a controller is mounted, or with ""
// where cgroup2 is. It is "" if there is none. The path is for reading figures;
// nothing here uses it.
func (h *Host) Mountpoint(controller string) string {
	if controller == "" && h.mode != Legacy {
		return h.v2.dir.Name()
	}
	for _, t := range h.v1 {
		if t.has(controller) {
			return t.dir.Name()
		}
	}
	return ""
}

// Path returns the path of box id below the root of every hierarchy.
func Path(id string) string { return "/" + baseName + "/" + id }

// HierarchyRoot returns the root of the cgroup2 tree, an O_PATH descriptor that
// the Host owns.
func (h *Host) HierarchyRoot() *os.File { return h.v2.dir }

// ReadOnlyTree returns a detached read-only mount of the cgroup2 tree, to be
// attached with linux.MoveMount. The caller owns it.
func (h *Host) ReadOnlyTree() (*os.File, error) {
	const attrs = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	if h.mode == Legacy {
		// A detached mount can be cloned only since Linux 6.15.
		return linux.NewMount("cgroup2", attrs)
	}
	return readOnlyClone(h.v2.dir)
}

// seal opens the box as the end of the way up: see [Group]. On a legacy host
// before Linux 6.15 the private mount cannot be cloned; then the whole tree is
// the end, still read-only, and it has nothing but boxes.
func (h *Host) seal(box *os.File, id string) (*os.File, error) {
	sealed, err := readOnlyClone(box)
	if h.mode != Legacy || !errors.Is(err, unix.EINVAL) {
		return sealed, err
	}
	tree, err := h.ReadOnlyTree()
	if err != nil {
		return nil, err
	}
	defer tree.Close()
	return openDir(tree, baseName+"/"+id)
}

// readOnlyClone returns a detached read-only mount whose root is dir, so that
// ".." does not lead out of it.
func readOnlyClone(dir *os.File) (*os.File, error) {
	tree, err := linux.OpenTree(dir, "", unix.OPEN_TREE_CLONE|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC}
	if err := linux.MountSetattr(tree, false, attr); err != nil {
		tree.Close()
		return nil, err
	}
	return tree, nil
}

// trees are all hierarchies, cgroup2 first.
func (h *Host) trees() []*hierarchy { return append([]*hierarchy{h.v2}, h.v1...) }

// of returns the hierarchy that carries a controller, nil if none does.
func (h *Host) of(controller string) *hierarchy {
	for _, t := range h.trees() {
		if t.has(controller) {
			return t
		}
	}
	return nil
}

// Close closes the descriptors. Close the groups made from the Host first.
func (h *Host) Close() error {
	errs := []error{h.kernel.close()}
	for _, t := range h.v1 {
		errs = append(errs, t.dir.Close())
	}
	if h.v2 != nil {
		errs = append(errs, h.v2.dir.Close())
	}
	return errors.Join(errs...)
}
