package mounts

import (
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
)

// Owner is a user and group of the host.
type Owner struct{ UID, GID int }

// maxNewDirs is the maximum number of directories that are created for one target inside a
// mount. Each of them stays open until all exist.
const maxNewDirs = 64

// MakeInnerPoint creates target, a directory or an empty file, and the directories above it,
// if the missing part lies inside a mount of the box other than its root. Otherwise it
// creates nothing and returns false: use [MakeMountPoint] then.
//
// The content of such a mount belongs to the box, which may at any time move it, remove it
// or replace it with symlinks. So each step is one name beneath a descriptor, never a
// symlink, and has the rights and the quota of the box's user, as: it creates nothing that
// the box could not have created itself. After a failure it leaves nothing behind.
func MakeInnerPoint(ns NS, target string, dir bool, as Owner) (inner bool, err error) {
	if err := spec.CheckTarget(target); err != nil {
		return false, err
	}
	err = linux.AsOwner(uint32(as.UID), uint32(as.GID), func() error {
		p := innerPoint{target: target, dir: dir, at: ns.root, root: ns.root}
		err := p.make()
		inner = p.inner
		return err
	})
	return inner, err
}

// innerPoint is a mount point that is being created.
type innerPoint struct {
	target string
	dir    bool
	root   *os.File // borrowed
	at     *os.File // current position of the walk; owned, unless it is root
	inner  bool     // at is known to lie in another mount than root
	made   []madeDir
}

// madeDir is a directory that was created. It owns parent.
type madeDir struct {
	parent *os.File
	name   string
}

// make walks down to the target and creates what is missing.
func (p *innerPoint) make() (err error) {
	defer func() {
		closeUnless(p.at, p.root)
		for _, d := range slices.Backward(p.made) {
			if err != nil {
				// The box may have replaced it. That one must also be empty to be removed.
				_ = linux.RmdirAt(d.parent, d.name)
			}
			d.parent.Close()
		}
	}()
	names := spec.PathComponents(p.target)
	for i, name := range names {
		if i == len(names)-1 && !p.dir {
			return p.file(name)
		}
		if done, err := p.step(name); done || err != nil {
			return err
		}
	}
	return nil
}

// step goes down one directory and creates it if necessary. done means that the walk ends
// here: the directory is missing in the root mount of the box.
func (p *innerPoint) step(name string) (done bool, err error) {
	next, err := openBelow(p.at, name, unix.S_IFDIR)
	if err == nil {
		closeUnless(p.at, p.root)
		p.at = next
		return false, nil
	}
	if !errors.Is(err, unix.ENOENT) {
		return false, p.explain(name, err)
	}
	if inside, err := p.isInner(); err != nil || !inside {
		return true, err
	}
	if len(p.made) == maxNewDirs {
		return false, refuse(spec.MountTarget, p.target, "has more than %d directories that do not exist in the box, make some first", maxNewDirs)
	}
	err = linux.MkdirAt(p.at, name, 0o755)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return false, p.explain(name, err)
	}
	mine := err == nil
	next, err = openBelow(p.at, name, unix.S_IFDIR)
	switch {
	case err != nil && mine:
		_ = linux.RmdirAt(p.at, name) // possibly of the box, as in make
		fallthrough
	case err != nil:
		return false, p.explain(name, err)
	case mine:
		p.made = append(p.made, madeDir{p.at, name})
	default:
		p.at.Close()
	}
	p.at = next
	return false, nil
}

// file creates the file at the end of the target.
func (p *innerPoint) file(name string) error {
	f, err := openBelow(p.at, name, unix.S_IFREG)
	if errors.Is(err, unix.ENOENT) {
		if inside, err := p.isInner(); err != nil || !inside {
			return err
		}
		f, err = linux.CreateAt(p.at, name, 0o644)
		if errors.Is(err, unix.EEXIST) {
			f, err = openStep(p.at, name, unix.S_IFREG)
		}
	}
	if err != nil {
		return p.explain(name, err)
	}
	return f.Close()
}

// isInner reports whether the walk has left the root mount.
func (p *innerPoint) isInner() (bool, error) {
	if p.inner {
		return true, nil
	}
	root, err := mountID(p.root)
	if err != nil {
		return false, err
	}
	at, err := mountID(p.at)
	p.inner = err == nil && at != root
	return p.inner, err
}

// explain says why name could not be created or passed.
func (p *innerPoint) explain(name string, err error) error {
	rule := ""
	switch {
	case errors.Is(err, unix.EROFS):
		rule = "does not exist in the box and cannot be created: %q would be in a mount that is read-only"
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EXDEV):
		rule = "passes a symlink in the box at %q, name the real path"
	case errors.Is(err, errOtherKind), errors.Is(err, unix.ENOTDIR):
		rule = "cannot be created: %q already exists as something else"
	case errors.Is(err, unix.EDQUOT), errors.Is(err, unix.ENOSPC):
		rule = "cannot be created: no space is left for %q in the mount above it"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		rule = "cannot be created: the user of the box may not make or pass %q"
	case errors.Is(err, unix.ENOENT):
		rule = "cannot be created: somebody removed or moved what is above %q meanwhile"
	default:
		return fmt.Errorf("creating %q of mount target %q: %w", name, p.target, err)
	}
	return refuse(spec.MountTarget, p.target, rule, name).Because(err)
}
