package mounts

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
)

// MakeMountPoint creates the directory or empty file target, and the directories above it,
// beneath root: a writable descriptor of the box's root file system. Existing components
// must be real directories of that file system, not symlinks or mounts. A box that can write
// beneath root can move directories during the call. The mount point may then be elsewhere in
// that file system, but nothing else changes.
func MakeMountPoint(root *os.File, target string, dir bool) error {
	if err := spec.CheckTarget(target); err != nil {
		return err
	}
	at := root
	defer func() { closeUnless(at, root) }()
	names := spec.PathComponents(target)
	for i, name := range names {
		if i == len(names)-1 && !dir {
			return makeFile(at, name, target)
		}
		next, err := makeDir(at, name, target)
		if err != nil {
			return err
		}
		closeUnless(at, root)
		at = next
	}
	return nil
}

// closeUnless closes f unless it is borrowed.
func closeUnless(f, lent *os.File) {
	if f != lent {
		f.Close()
	}
}

// makeDir opens the directory name beneath at, creating it if it is missing.
func makeDir(at *os.File, name, target string) (*os.File, error) {
	f, err := openStep(at, name, unix.S_IFDIR)
	if errors.Is(err, unix.ENOENT) {
		err = linux.MkdirAt(at, name, 0o755)
		made := err == nil
		if made || errors.Is(err, unix.EEXIST) {
			f, err = openStep(at, name, unix.S_IFDIR)
		}
		if made && err == nil {
			// The box must be able to pass, whatever the umask. It may have put a symlink in
			// place of the directory meanwhile, so this uses the descriptor.
			if err = os.Chmod(linux.FdPath(f), 0o755); err != nil {
				f.Close()
			}
		}
	}
	if err != nil {
		return nil, explainMake(target, name, err)
	}
	return f, nil
}

// makeFile creates name beneath at as an empty file. It leaves an existing regular file as
// it is.
func makeFile(at *os.File, name, target string) error {
	f, err := linux.CreateAt(at, name, 0o444)
	if errors.Is(err, unix.EEXIST) {
		f, err = openStep(at, name, unix.S_IFREG)
	}
	if err != nil {
		return explainMake(target, name, err)
	}
	return f.Close()
}

// openStep opens an existing file or directory of the given kind on the same mount.
func openStep(at *os.File, name string, kind uint32) (*os.File, error) {
	return openKind(at, name, kind, unix.RESOLVE_NO_XDEV)
}

// openBelow is openStep for any mount.
func openBelow(at *os.File, name string, kind uint32) (*os.File, error) {
	return openKind(at, name, kind, 0)
}

func openKind(at *os.File, name string, kind uint32, resolve uint64) (*os.File, error) {
	f, err := linux.Openat2(at, name, unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | resolve,
	})
	if err != nil {
		return nil, err
	}
	st, err := linux.Fstat(f)
	switch got := st.Mode & unix.S_IFMT; {
	case err != nil, got == kind:
	case got == unix.S_IFLNK:
		// With O_PATH|O_NOFOLLOW the last component may be a symlink (openat2(2)).
		err = unix.ELOOP
	default:
		err = errOtherKind
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

var errOtherKind = errors.New("exists and is of another kind")

// explainMake says why a component of the target name could not be created.
func explainMake(name, component string, err error) error {
	rule := ""
	switch {
	case errors.Is(err, unix.EXDEV), errors.Is(err, unix.EROFS):
		rule = "does not exist in the box and cannot be created: %q is read-only there, choose a target outside of it"
	case errors.Is(err, unix.ELOOP):
		rule = "passes a symlink in the box at %q, name the real path"
	case errors.Is(err, errOtherKind):
		rule = "cannot be created: %q already exists as something else"
	case errors.Is(err, unix.ENOSPC):
		rule = "cannot be created: no space for %q in the root of the box"
	default:
		return fmt.Errorf("creating %q of mount target %q: %w", component, name, err)
	}
	return refuse(spec.MountTarget, name, rule, component).Because(err)
}
