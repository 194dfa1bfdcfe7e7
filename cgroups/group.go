package cgroups

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/internal/linux"
)

// Owner is the host user of the agent, which may start processes in the slots.
type Owner struct{ UID, GID int }

// Group is the cgroups of one box. It owns one descriptor per hierarchy and one
// mount. It is safe for concurrent use, except that no call may follow Remove or Close.
type Group struct {
	// ID of the box.
	ID string
	// Degraded are the limits that were requested but are not in force.
	Degraded []*UnenforceableError

	host  *Host
	owner Owner
	v2    *tree
	v1    []*tree
	// sealed is boxd/<box> as the root of a read-only mount. Directories for the agent
	// are opened beneath it, so that a hostile agent can neither walk up from them nor
	// write to anything.
	sealed    *os.File
	enableErr map[string]error // by cgroup2 controller: why it could not be enabled
	lastSlot  atomic.Int64
	watcher   atomic.Pointer[Watcher] // nil if its limits are not watched

	mu     sync.Mutex // guards the following fields, and setting limits
	limits Limits
	debit  int64 // bytes by which the memory limit is lowered, see Debit
}

// tree is boxd/<box> on one hierarchy.
type tree struct {
	on  *hierarchy
	box *os.File // O_PATH
}

func (g *Group) trees() []*tree { return append([]*tree{g.v2}, g.v1...) }

// slotTrees are the trees on which each command has its own cgroup. A v1 tree with only
// the cpu controller is not among them: cgroup2 counts CPU time, and the limit is one of
// the box.
func (g *Group) slotTrees() []*tree { return append([]*tree{g.v2}, g.slotTreesV1()...) }

func (g *Group) slotTreesV1() (trees []*tree) {
	for _, t := range g.v1 {
		if t.on.has("memory") || t.on.has("pids") {
			trees = append(trees, t)
		}
	}
	return trees
}

// v1Tree returns the tree of a controller that is on v1, otherwise nil.
func (g *Group) v1Tree(controller string) *tree { return treeOf(g.v1, controller) }

// treeOf returns the tree whose hierarchy has a controller, or nil.
func (g *Group) treeOf(controller string) *tree { return treeOf(g.trees(), controller) }

func treeOf(trees []*tree, controller string) *tree {
	for _, t := range trees {
		if t != nil && t.on.has(controller) {
			return t
		}
	}
	return nil
}

// Create creates the cgroups of a box and sets its limits. The ID must not be in use. On
// failure nothing is left behind. The caller owns the Group and ends it with Remove.
func (h *Host) Create(id string, owner Owner, l Limits) (_ *Group, err error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	g := &Group{ID: id, host: h, owner: owner, enableErr: map[string]error{}}
	var undo cleanup.Stack
	defer undo.Undo(&err)
	if err := g.makeV2(&undo); err != nil {
		return nil, fmt.Errorf("creating cgroup %q: %w", id, err)
	}
	for _, on := range h.v1 {
		if err := g.makeV1(on); err != nil {
			return nil, fmt.Errorf("creating cgroup %q: %w", id, err)
		}
	}
	if err := g.Set(l); err != nil {
		return nil, err
	}
	undo.Release()
	return g, nil
}

// makeV2 creates the cgroup2 part, and lets the agent start processes in it. Creating
// boxd/<box> there claims the ID.
func (g *Group) makeV2(undo *cleanup.Stack) error {
	on := g.host.v2
	if err := enable(on.dir, g.enableErr); err != nil {
		return err
	}
	box, err := makeBox(on.dir, g.ID)
	if err != nil {
		return err
	}
	g.v2 = &tree{on: on, box: box}
	undo.Push(func() error { return g.Remove(context.Background()) })
	base, err := openDir(on.dir, baseName)
	if err != nil {
		return err
	}
	defer base.Close()
	if err := enable(base, g.enableErr); err != nil {
		return err
	}
	if err := enable(box, g.enableErr); err != nil {
		return err
	}
	for _, name := range []string{"init", "work"} {
		if err := linux.MkdirAt(box, name, 0o755); err != nil {
			return err
		}
	}
	for _, name := range []string{"cgroup.procs", "init/cgroup.procs", "work/cgroup.procs"} {
		if err := linux.Fchownat(box, name, g.owner.UID, g.owner.GID); err != nil {
			return err
		}
	}
	work, err := openDir(box, "work")
	if err != nil {
		return err
	}
	defer work.Close()
	if err := enable(work, g.enableErr); err != nil {
		return err
	}
	g.sealed, err = g.host.seal(box, g.ID)
	return err
}

// makeV1 creates the part on one v1 hierarchy. It first removes leftovers of the same ID:
// makeV2 has claimed it, and stale limits must not apply.
func (g *Group) makeV1(on *hierarchy) error {
	box, err := makeBox(on.dir, g.ID)
	if errors.Is(err, unix.EEXIST) {
		if err := removeTree(on.dir, baseName+"/"+g.ID); err != nil {
			return err
		}
		box, err = makeBox(on.dir, g.ID)
	}
	if err != nil {
		return err
	}
	g.v1 = append(g.v1, &tree{on: on, box: box})
	return linux.MkdirAt(box, "work", 0o755)
}

// makeBox creates and opens boxd/<id> beneath root.
func makeBox(root *os.File, id string) (*os.File, error) {
	path := baseName + "/" + id
	var err error
	for range 100 {
		// Removing the last other box also removes boxd/: create it again.
		if err = linux.MkdirAt(root, baseName, 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
			return nil, err
		}
		if err = useHierarchy(root); err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
		if err = linux.MkdirAt(root, path, 0o755); !errors.Is(err, unix.ENOENT) {
			break
		}
	}
	if err != nil {
		return nil, err
	}
	return openDir(root, path)
}

// useHierarchy makes v1 memory limits include child cgroups. Since Linux 5.11 they always
// do.
func useHierarchy(root *os.File) error {
	const file = baseName + "/memory.use_hierarchy"
	if n, err := readNumber(root, file); err != nil || n == 1 {
		return nil
	}
	return linux.WriteFileAt(root, file, "1")
}

// OpenGroup opens what is left of a box that another process created, for Kill and
// Remove. It fails with fs.ErrNotExist if nothing is left.
func (h *Host) OpenGroup(id string) (*Group, error) {
	if err := checkID(id); err != nil {
		return nil, err
	}
	g := &Group{ID: id, host: h, v2: &tree{on: h.v2}, limits: Limits{}.normal()}
	for _, on := range h.trees() {
		box, err := openDir(on.dir, baseName+"/"+id)
		switch {
		case errors.Is(err, unix.ENOENT):
		case err != nil:
			return nil, errors.Join(err, g.Close())
		case on.v1:
			g.v1 = append(g.v1, &tree{on: on, box: box})
		default:
			g.v2.box = box
		}
	}
	if g.v2.box == nil && len(g.v1) == 0 {
		return nil, &os.PathError{Op: "opening cgroup of box", Path: id, Err: unix.ENOENT}
	}
	return g, nil
}

// List returns the IDs of all boxes that have a cgroup on any hierarchy, sorted.
func (h *Host) List() ([]string, error) {
	var ids []string
	for _, on := range h.trees() {
		names, err := subdirectories(on.dir, baseName)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return nil, err
		}
		ids = append(ids, names...)
	}
	slices.Sort(ids)
	return slices.Compact(ids), nil
}

// Close closes the descriptors and leaves the cgroups as they are. It may be called more
// than once.
func (g *Group) Close() error {
	var errs []error
	files := []**os.File{&g.sealed}
	for _, t := range g.trees() {
		if t != nil {
			files = append(files, &t.box)
		}
	}
	for _, f := range files {
		if *f != nil {
			errs = append(errs, (*f).Close())
			*f = nil
		}
	}
	return errors.Join(errs...)
}

// checkID refuses anything but a single path component. Other packages decide how boxes
// may be named.
func checkID(id string) error {
	if id == "" || id == "." || id == ".." || len(id) > 200 || strings.ContainsAny(id, "/\n\x00") {
		return fmt.Errorf("id %q: not usable as a cgroup name", id)
	}
	return nil
}

func openDir(dir *os.File, name string) (*os.File, error) {
	return linux.OpenAt(dir, name, unix.O_PATH|unix.O_DIRECTORY)
}
