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
	"github.com/boxd/boxd/internal/pathin"
)

// Mode is the kind of cgroup set-up that a host has.
type Mode string

// The modes.
const (
	Unified Mode = "unified" // every controller that boxd uses is on cgroup2
	Hybrid  Mode = "hybrid"  // some are on v1, and cgroup2 is mounted
	Legacy  Mode = "legacy"  // some are on v1, and cgroup2 is not mounted
)

// baseName is the directory that holds all boxes, at the root of each hierarchy.
const baseName = "boxd"

// controllers that boxd uses for limits, in the order of [Slot.Tasks].
var controllers = []string{"memory", "pids", "cpu"}

// Host holds the cgroup hierarchies of this machine open. It is safe for concurrent use.
type Host struct {
	mode Mode
	v2   *hierarchy
	v1   []*hierarchy // those with memory, pids or cpu
	// localPIDs means that cgroup2 is mounted with pids_localevents: it counts a refused
	// fork at the cgroup of the forking task even on Linux 6.11 and later.
	localPIDs bool

	kernel kernelMemory
}

// hierarchy is one mounted cgroup tree.
type hierarchy struct {
	dir         *os.File // O_PATH; its Name is the path for messages
	controllers []string
	v1          bool
	home        string // v1: the cgroup of this process, relative to dir
}

func (h *hierarchy) has(controller string) bool {
	return slices.Contains(h.controllers, controller)
}

// Detect finds and opens the hierarchies. If cgroup2 is not mounted, Detect mounts it
// privately: nobody else sees the mount, and it vanishes with the Host. The caller owns
// the Host.
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
			continue // something is mounted over it: another mount may be reachable
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
	// Prefer a mount of the whole tree to one of a part.
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
	// A new mount resets the options of the single cgroup2 super block, so create one only
	// if nobody else has mounted it.
	dir, err := linux.NewMount("cgroup2", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOEXEC)
	if err != nil {
		return fmt.Errorf("mounting cgroup2, which is mounted nowhere: %w", err)
	}
	return h.setV2(dir)
}

func (h *Host) setV2(dir *os.File) error {
	h.v2 = &hierarchy{dir: dir}
	list, err := linux.ReadFileAt(dir, "cgroup.controllers")
	h.v2.controllers = strings.Fields(list)
	return err
}

// openTree opens the directory path if it is on a file system of type magic.
func openTree(path string, magic int64) (*os.File, error) {
	dir, err := linux.Openat2(nil, path, unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
	if err != nil {
		return nil, err
	}
	st, err := linux.Fstatfs(dir)
	if err == nil && st.Type != magic {
		err = &os.PathError{Op: "open cgroup tree", Path: path, Err: unix.EMEDIUMTYPE}
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// parseOwnCgroups parses /proc/<pid>/cgroup: the path of the process on each v1 hierarchy,
// by controller, and for "" on cgroup2. See cgroups(7).
func parseOwnCgroups(content string) map[string]string {
	paths := map[string]string{}
	for line := range strings.Lines(content) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		for c := range strings.SplitSeq(f[1], ",") {
			paths[c] = f[2]
		}
	}
	return paths
}

// relativeTo returns the path of a cgroup relative to a mount of root. A cgroup outside of
// root is unreachable; "." stands in for it.
func relativeTo(root, path string) string {
	rel, ok := pathin.Rel(filepath.Clean(path), filepath.Clean(root))
	if !ok {
		return "."
	}
	return rel
}

// Mode returns the kind of cgroup set-up.
func (h *Host) Mode() Mode { return h.mode }

// Mountpoint returns the mount point of the v1 hierarchy of a controller or, for "", of
// cgroup2. It is "" if there is none. The path is only for reading figures; this package
// does not use it.
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

// Path returns the path of box id from the root of every hierarchy.
func Path(id string) string { return "/" + baseName + "/" + id }

// ReadOnlyTree returns a detached read-only mount of the cgroup2 tree, for
// linux.MoveMount. The caller owns it.
func (h *Host) ReadOnlyTree() (*os.File, error) {
	const attrs = unix.MOUNT_ATTR_RDONLY | unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV | unix.MOUNT_ATTR_NOEXEC
	if h.mode == Legacy {
		// A detached mount can be cloned only since Linux 6.15.
		return linux.NewMount("cgroup2", attrs)
	}
	return readOnlyClone(h.v2.dir)
}

// seal returns the box as the root of a read-only mount: see [Group]. On a legacy host
// before Linux 6.15, the private mount cannot be cloned. Then the mount is of the whole
// tree, which contains nothing but boxes; it is read-only as well.
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

// readOnlyClone returns a detached read-only mount whose root is dir, so that ".." does not
// lead out of dir.
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

// of returns the hierarchy that has a controller, or nil.
func (h *Host) of(controller string) *hierarchy {
	for _, t := range h.trees() {
		if t.has(controller) {
			return t
		}
	}
	return nil
}

// RemoveBase removes, from each hierarchy, the cgroup above those of boxes, unless boxes are in it.
func (h *Host) RemoveBase() error {
	var errs []error
	for _, on := range h.trees() {
		// With children it is busy.
		err := linux.RmdirAt(on.dir, baseName)
		if err != nil && !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EBUSY) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
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
