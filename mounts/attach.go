package mounts

import (
	"errors"
	"fmt"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
)

// MountPointMaker creates a missing mount point, a directory or an empty file, for example
// with [MakeMountPoint].
type MountPointMaker func(target string, dir bool) error

// MountID identifies a mount that [Attach] made, for [Detach]. From Linux 6.8 on it
// is never reused before the next boot; on older kernels it may be reused once the
// mount is gone.
type MountID uint64

// Attach attaches the detached mount tree at target in the box. It refuses a target
// that is or passes a symlink, or is of the other kind (file or directory). If the
// target is missing, Attach calls makePoint to create it; if makePoint is nil, or the
// target is still missing, the error is ErrNoTarget. The caller keeps tree and may
// close it.
//
// The mount is not locked (mount_namespaces(7)): a process with CAP_SYS_ADMIN in
// the user namespace of the box could make it writable again. No process of a box
// has that capability.
func Attach(ns NS, tree *os.File, target string, makePoint MountPointMaker) (MountID, error) {
	if err := spec.CheckTarget(target); err != nil {
		return 0, err
	}
	st, err := linux.Fstat(tree)
	if err != nil {
		return 0, err
	}
	dir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	err = ns.attach(tree, target, dir)
	if errors.Is(err, ErrNoTarget) && makePoint != nil {
		if err := makePoint(target, dir); err != nil {
			return 0, err
		}
		err = ns.attach(tree, target, dir)
		if errors.Is(err, ErrNoTarget) {
			err = refuse(spec.MountTarget, target, "does not exist in the box and cannot be created: what is mounted above it is read-only there").Because(err)
		}
	}
	if err != nil {
		return 0, err
	}
	return mountID(tree)
}

// attach is Attach for a target that exists.
func (ns NS) attach(tree *os.File, name string, dir bool) error {
	fds, err := openFDs()
	if err != nil {
		return err
	}
	defer fds.Close()
	return ns.enter(func() error {
		point, err := ns.openTarget(name)
		if err != nil {
			return err
		}
		defer point.Close()
		st, err := linux.Fstat(point)
		if err != nil {
			return err
		}
		if err := checkKind(name, st.Mode, dir); err != nil {
			return err
		}
		err = linux.MoveMount(tree, point, "")
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
			return refuse(spec.MountTarget, name, "was removed or moved by somebody while it was being mounted there, try again: %v", err).Because(err)
		}
		if err != nil {
			return fmt.Errorf("attaching at %q: %w", name, err)
		}
		if err := ns.confirm(tree, name); err != nil {
			return errors.Join(err, unmountFile(fds, tree, name))
		}
		return nil
	})
}

// confirm checks that the mount is where it should be. The target was opened by name
// and then used as a descriptor. In between, a box that may rename directories above the
// target can move it to another place.
func (ns NS) confirm(tree *os.File, name string) error {
	f, err := ns.openTarget(name)
	if err == nil {
		defer f.Close()
		want, werr := mountID(tree)
		got, gerr := mountID(f)
		if err = errors.Join(werr, gerr); err == nil && got == want {
			return nil
		}
	}
	return refuse(spec.MountTarget, name, "was moved or covered by somebody while it was being mounted, try again").Because(err)
}

// openTarget opens a path in the box. Its error explains why the path cannot be a target.
func (ns NS) openTarget(name string) (*os.File, error) {
	f, err := ns.beneath(name)
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, unix.ENOENT):
		return nil, refuse(spec.MountTarget, name, "does not exist in the box").Because(ErrNoTarget)
	case errors.Is(err, unix.ELOOP):
		return nil, refuse(spec.MountTarget, name, "passes a symlink in the box, name the real path").Because(err)
	case errors.Is(err, unix.ENOTDIR):
		return nil, refuse(spec.MountTarget, name, "passes a file in the box").Because(err)
	case errors.Is(err, unix.EACCES): // only in a mount whose ID map does not include the owner
		return nil, refuse(spec.MountTarget, name, "passes a directory that does not belong to the owner of the mount it is in").Because(err)
	}
	return nil, fmt.Errorf("opening mount target %q: %w", name, err)
}

// checkKind checks whether a tree of the given kind can cover a file of the given mode.
func checkKind(name string, mode uint32, dir bool) error {
	switch kind := mode & unix.S_IFMT; {
	case kind == unix.S_IFLNK:
		return refuse(spec.MountTarget, name, "is a symlink in the box, name the real path")
	case dir && kind != unix.S_IFDIR:
		return refuse(spec.MountTarget, name, "is not a directory in the box, but the source is one")
	case !dir && kind == unix.S_IFDIR:
		return refuse(spec.MountTarget, name, "is a directory in the box, but the source is a file")
	case !dir && kind != unix.S_IFREG:
		return refuse(spec.MountTarget, name, "is not a regular file in the box, but the source is one")
	}
	return nil
}

// Detach removes the mount id that Attach put at target, even if it is in use:
// processes keep the files that they have open. Mounts inside it are removed as well,
// so detach those first (see [InOrder]). If another mount is there, or none, the error
// is ErrNotAttached and nothing changes.
func Detach(ns NS, target string, id MountID) error {
	return ns.inParent(target, func(dir *os.File) error {
		f, err := openAttached(dir, target, id)
		if err != nil {
			return err
		}
		f.Close()
		// umount2 only takes a path, and this process's /proc is out of reach here. The
		// working directory belongs to this thread, which ends soon.
		if err := linux.Fchdir(dir); err != nil {
			return err
		}
		// Between the check and here the box cannot replace a name that something is
		// mounted on (rename(2), EBUSY). A process outside that replaces it thereby removes
		// the mount.
		err = linux.Unmount(path.Base(target), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			return notAttached(target, err)
		}
		if err != nil {
			return fmt.Errorf("detaching %q: %w", target, err)
		}
		return nil
	})
}

// OpenAttached returns an O_PATH descriptor of the root of the mount id that [Attach] put at
// target. If another mount is there, or none, the error is ErrNotAttached. The caller closes
// the descriptor.
func OpenAttached(ns NS, target string, id MountID) (f *os.File, err error) {
	err = ns.inParent(target, func(dir *os.File) error {
		f, err = openAttached(dir, target, id)
		return err
	})
	return f, err
}

// inParent calls fn in the box with the directory that contains target.
func (ns NS) inParent(target string, fn func(dir *os.File) error) error {
	if err := spec.CheckTarget(target); err != nil {
		return err
	}
	return ns.enter(func() error {
		dir, err := ns.openTarget(path.Dir(target))
		if err != nil {
			return notAttached(target, err)
		}
		defer dir.Close()
		return fn(dir)
	})
}

// openAttached opens the root of the mount id at target, in dir.
func openAttached(dir *os.File, target string, id MountID) (*os.File, error) {
	f, err := linux.Openat2(dir, path.Base(target), unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, notAttached(target, err)
	}
	got, err := rootOfMount(f)
	if err == nil && (got == 0 || got != id) {
		err = notAttached(target, nil)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// MountAt returns the ID of the mount whose root is at target in the box, or 0 if target
// is not the root of a mount.
func MountAt(ns NS, target string) (id MountID, err error) {
	if err := spec.CheckTarget(target); err != nil {
		return 0, err
	}
	err = ns.enter(func() error {
		f, err := ns.openTarget(target)
		if errors.Is(err, ErrNoTarget) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		id, err = rootOfMount(f)
		return err
	})
	return id, err
}

func notAttached(name string, cause error) error {
	return refuse(spec.MountTarget, name, "is not where boxd attached this mount").Because(errors.Join(ErrNotAttached, cause))
}

// rootOfMount returns the ID of the mount that f is the root of, or 0 if it is not the root
// of one.
func rootOfMount(f *os.File) (MountID, error) {
	st, err := linux.Statx(f, unix.STATX_MNT_ID)
	if err != nil || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		return 0, err
	}
	return mountID(f)
}

// mountID returns the ID of the mount that f is on, the unique one if the kernel has it.
func mountID(f *os.File) (MountID, error) {
	for _, mask := range []int{unix.STATX_MNT_ID_UNIQUE, unix.STATX_MNT_ID} {
		st, err := linux.Statx(f, mask)
		if err != nil {
			return 0, err
		}
		if st.Mask&uint32(mask) != 0 {
			return MountID(st.Mnt_id), nil
		}
	}
	return 0, errNoMountID
}

var errNoMountID = errors.New("the kernel does not report mount IDs, which needs Linux 5.8")
