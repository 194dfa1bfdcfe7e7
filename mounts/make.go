package mounts

import (
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/pathin"
)

// Make is [Root.Open] for a directory of the host that may be missing. It creates the
// directory and missing directories above it, with the rights of the owner and with the mode
// of the nearest existing one. Below m.Within, which must exist, no component may be a
// symlink.
//
// Boxes may be changing the directories on the path. So each step starts from a descriptor
// and has only the rights of an owner who could do the same; and at the end the whole path
// is resolved again from m.Within, as for a directory that existed before.
func (r Root) Make(m spec.Mount, deny []string) (*Source, error) {
	if err := spec.CheckMountPath(spec.MountSource, m.Source); err != nil {
		return nil, err
	}
	if m.Source != path.Clean(m.Source) {
		return nil, refuse(spec.MountSource, m.Source, "must be written as %q to be made", path.Clean(m.Source))
	}
	if _, err := spec.Beneath(spec.MountWithin, m.Within, m.Source); err != nil {
		return nil, err
	}
	within, name, err := r.bound(m)
	if err != nil {
		return nil, err
	}
	defer within.Close()
	below, err := spec.Beneath(spec.MountWithin, name, m.Source)
	if err != nil {
		return nil, err
	}
	rel := spec.PathComponents(below)
	mayMake := func(at *os.File, rest []string) error {
		st, err := linux.Fstat(at)
		if err != nil {
			return err
		}
		if err := r.allow(st.Uid, st.Gid); err != nil {
			return err
		}
		return checkMake(at, rest, m.Source, deny)
	}
	if err := makeBeneath(within, rel, m.Source, mayMake); err != nil {
		return nil, err
	}
	f, err := linux.Openat2(within, "./"+strings.Join(rel, "/"), stepHow)
	if err != nil {
		return nil, explainMakeSource(m.Source, rel, err)
	}
	return r.newSource(f, m.Source, deny)
}

// MakeIn is Make for a directory in the volume whose root directory is root.
func MakeIn(root *os.File, m spec.Mount) (*Source, error) {
	if err := m.ValidateVolume(); err != nil {
		return nil, err
	}
	anywhere := func(*os.File, []string) error { return nil }
	if err := makeBeneath(root, spec.PathComponents(m.Source), m.Source, anywhere); err != nil {
		return nil, err
	}
	return OpenIn(root, m)
}

// stepHow opens a directory through a path without symlinks.
var stepHow = unix.OpenHow{
	Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW,
	Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
}

// makeBeneath creates the missing ones of the directories names, each in the one before. It
// calls mayMake once, before it creates the first.
func makeBeneath(root *os.File, names []string, source string, mayMake func(at *os.File, rest []string) error) error {
	at := root
	defer func() { closeUnless(at, root) }()
	for i, name := range names {
		next, err := linux.Openat2(at, name, stepHow)
		if errors.Is(err, unix.ENOENT) {
			if err := mayMake(at, names[i:]); err != nil {
				return err
			}
			return makeAsOwner(at, names[i:], source)
		}
		if err != nil {
			return explainMakeSource(source, names[:i+1], err)
		}
		closeUnless(at, root)
		at = next
	}
	return nil
}

// makeAsOwner creates the directories names, each in the one before, with the rights of the
// owner of at.
func makeAsOwner(at *os.File, names []string, source string) error {
	st, err := linux.Fstat(at)
	if err != nil {
		return err
	}
	mode := st.Mode & (0o777 | unix.S_ISVTX) // the kernel itself passes the setgid bit on
	return linux.AsOwner(st.Uid, st.Gid, func() error {
		dir := at
		defer func() { closeUnless(dir, at) }()
		for i, name := range names {
			err := linux.MkdirAt(dir, name, mode)
			if err != nil && !errors.Is(err, unix.EEXIST) {
				return explainMakeSource(source, names[:i+1], err)
			}
			next, err := linux.Openat2(dir, name, stepHow)
			if err != nil {
				return explainMakeSource(source, names[:i+1], err)
			}
			closeUnless(dir, at)
			dir = next
		}
		return nil
	})
}

// checkMake refuses to create rest in at if [Open] would refuse the result. Unlike a source,
// at itself may contain a denied tree, or be the root.
func checkMake(at *os.File, rest []string, source string, deny []string) error {
	seen, err := newSurvey()
	if err != nil {
		return err
	}
	p, err := seen.locate(at)
	if err != nil {
		return refuse(spec.MountSource, source, "cannot be made: the directory that it would be in cannot be located: %v", err).Because(err)
	}
	target := path.Join(p.path, path.Join(rest...))
	for _, entry := range deny {
		if entry == "/" {
			continue
		}
		how, err := seen.relation(p, entry)
		if err != nil {
			return refuse(spec.MountSource, source, "cannot be checked against %q: %v", entry, err).Because(err)
		}
		if how != "" && how != "contains" || pathin.In(target, entry) {
			return refuse(spec.MountSource, source, "would lie in %q, which is never mounted: use a directory outside of it", entry)
		}
	}
	if controlFS[p.fs.FSType] {
		return refuse(spec.MountSource, source, "would lie on a %s file system, which is never mounted", p.fs.FSType)
	}
	return nil
}

// explainMakeSource says why the last of names, on the path to source, cannot be created or
// opened.
func explainMakeSource(source string, names []string, err error) error {
	name := strings.Join(names, "/")
	rule := ""
	switch {
	case errors.Is(err, unix.ELOOP):
		rule = "cannot be made: %q is a symlink, name the real path"
	case errors.Is(err, unix.ENOTDIR):
		rule = "cannot be made: %q is not a directory (a symlink does not count)"
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		rule = "cannot be made: the owner of the directory above %q may not write to it"
	case errors.Is(err, unix.EROFS):
		rule = "cannot be made: the file system above %q is read-only"
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT):
		rule = "cannot be made: no space or no inode is left for %q"
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.EXDEV), errors.Is(err, unix.EAGAIN):
		rule = "cannot be made: %q was moved or removed meanwhile"
	default:
		return fmt.Errorf("making %q of mount source %q: %w", name, source, err)
	}
	return refuse(spec.MountSource, source, rule, name).Because(err)
}
