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

// MountPointMaker creates a missing mount point, a directory or an empty file.
// [MakeMountPoint] on the box's writable root is one.
type MountPointMaker func(target string, dir bool) error

// MountID names a mount that [Attach] made, for [Detach]. From Linux 6.8 on it
// is never used again before the next boot; on older kernels it may be reused
// once the mount is gone.
type MountID uint64

// Attach puts the detached mount tree at target in the box. A target that is or
// passes a symlink is refused, as is one of the other kind (file or directory).
// If it is missing, makePoint is asked to create it; without makePoint, or if
// that did not help, the error is ErrNoTarget. The caller keeps tree, and may
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
		err = linux.MoveMount(tree, point, "", 0)
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

// confirm makes sure that a mount is where it should be. Its target is found by name
// and then is a descriptor: a box that may rename what lies above takes it elsewhere in
// between, out of sight of whoever asked for it.
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

// openTarget opens a path in the box and says why it cannot be a target.
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
	case errors.Is(err, unix.EACCES): // only in a mount with an id map that leaves its owner out
		return nil, refuse(spec.MountTarget, name, "passes a directory that does not belong to the owner of the mount it is in").Because(err)
	}
	return nil, fmt.Errorf("opening mount target %q: %w", name, err)
}

// checkKind says whether a tree of the given kind can cover a file of mode.
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

// Detach takes away the mount id that Attach put at target, even if it is in
// use: processes keep what they have open. Mounts inside of it go with it, so
// detach those first (see [InOrder]). If another mount is there, or none,
// the error is ErrNotAttached and nothing is changed.
func Detach(ns NS, target string, id MountID) error {
	if err := spec.CheckTarget(target); err != nil {
		return err
	}
	return ns.enter(func() error {
		dir, err := ns.openTarget(path.Dir(target))
		if err != nil {
			return notAttached(target, err)
		}
		defer dir.Close()
		if err := isAttached(dir, target, id); err != nil {
			return err
		}
		// umount2 takes a path only, and no /proc of this process is in reach.
		// The working directory of this thread goes away with it.
		if err := fchdir(dir); err != nil {
			return err
		}
		return detachName(path.Base(target), target)
	})
}

// isAttached makes sure that the mount id is what target, in dir, shows.
func isAttached(dir *os.File, target string, id MountID) error {
	f, err := openAttached(dir, target, id)
	if err != nil {
		return err
	}
	return f.Close()
}

// openAttached opens what the mount id shows at target, in dir.
func openAttached(dir *os.File, target string, id MountID) (*os.File, error) {
	f, err := linux.Openat2(dir, path.Base(target), unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_NO_SYMLINKS,
	})
	if err != nil {
		return nil, notAttached(target, err)
	}
	st, err := linux.Statx(f, unix.STATX_MNT_ID)
	if err != nil {
		f.Close()
		return nil, err
	}
	got, err := mountID(f)
	if err == nil && (st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 || got != id) {
		err = notAttached(target, nil)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// detachName unmounts name in the working directory. Between the check and here
// the box cannot replace a name that something is mounted on (rename(2), EBUSY),
// and whoever can from outside thereby takes the mount away itself.
func detachName(name, target string) error {
	err := linux.Unmount(name, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
		return notAttached(target, err)
	}
	if err != nil {
		return fmt.Errorf("detaching %q: %w", target, err)
	}
	return nil
}

func notAttached(name string, cause error) error {
	return refuse(spec.MountTarget, name, "is not where boxd attached this mount").Because(errors.Join(ErrNotAttached, cause))
}

// mountID asks for the id of the mount of f, unique if the kernel knows it.
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
	return 0, errors.New("the kernel does not tell mount ids, which needs Linux 5.8")
}

// fchdir changes the working directory of a thread of OnThrowawayThread.
func fchdir(dir *os.File) error {
	if err := linux.Retry(func() error { return unix.Fchdir(int(dir.Fd())) }); err != nil {
		return &os.PathError{Op: "fchdir", Path: dir.Name(), Err: err}
	}
	return nil
}
