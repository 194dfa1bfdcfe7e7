package daemon

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/mounts"
	"golang.org/x/sys/unix"
)

// dirs are the two directories of a daemon.
type dirs struct {
	state   string // has the daemon's database, audit log and workspaces, and root's volumes
	runtime string // is root's, for the launcher
}

// volumes returns the directory in which the daemon's launcher keeps volumes. The state directory
// must exist.
func (d dirs) volumes() (string, error) {
	real, err := filepath.EvalSymlinks(d.state)
	if err != nil {
		return "", fmt.Errorf("state directory: %w", err)
	}
	return filepath.Join(real, "volumes"), nil
}

// workspaces returns the directory of the sessions' workspaces.
func (d dirs) workspaces() string { return filepath.Join(d.state, "workspaces") }

// nested reports whether the launcher's directory lies in the daemon's.
func (d dirs) nested() bool { return pathin.In(filepath.Clean(d.runtime), filepath.Clean(d.state)) }

// checkState refuses a state directory in which workspaces could never be mounted.
func checkState(path string) error {
	for _, tree := range mounts.DefaultDeny {
		if tree != "/" && pathin.In(path, tree) {
			return &engine.FieldError{Field: "state_dir", Value: spec.Quote(path), Rule: "must not be in " + tree + ": nothing there is ever mounted, so boxes would have no workspace; choose another --state-dir"}
		}
	}
	return nil
}

// makeState creates the directories of a daemon that serves as a. root says whether this process is
// root or a itself.
func (d dirs) makeState(root bool, a account) (err error) {
	if err := checkState(d.state); err != nil {
		return err
	}
	if err := checkOwner(d.state, a); err != nil {
		return adviseState(d.state, err)
	}
	if root {
		err = d.prepare(a)
	} else if err = os.MkdirAll(d.state, 0o700); err != nil {
		err = fmt.Errorf("state directory: %w", err)
	} else if err = unix.Access(d.state, unix.W_OK|unix.X_OK); err != nil {
		err = fmt.Errorf("state directory: writing in %s: %w", spec.Quote(d.state), err)
	}
	if err != nil {
		return adviseState(d.state, err)
	}
	real, err := filepath.EvalSymlinks(d.state)
	if err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	return checkState(real)
}

// adviseState adds to err, of the state directory, what the user can do about it.
func adviseState(path string, err error) error {
	switch {
	case errors.Is(err, unix.EROFS):
		return fmt.Errorf("%w: %s needs a writable file system: remount it read-write, or name another --state-dir", err, spec.Quote(path))
	case errors.Is(err, unix.ENOTDIR):
		return fmt.Errorf("%w: %s and everything above it must be directories: remove what is in the way, or name another --state-dir", err, spec.Quote(path))
	case errors.Is(err, fs.ErrPermission) && os.Geteuid() != 0:
		return fmt.Errorf("%w: run boxd serve as root, with sudo, or name a --state-dir that user %d may write", err, os.Geteuid())
	}
	return err
}

// prepare creates both directories, as root, for a daemon that serves as a.
func (d dirs) prepare(a account) error {
	// The sticky bit keeps the daemon from replacing directories that it does not own, such as the
	// launcher's.
	mode := 0o770 | fs.ModeSticky
	if d.nested() {
		mode |= 0o001 // boxes pass through
	}
	if err := makeDir(d.state, 0, a.gid, mode, a.uid); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if err := letIn(d.state, a.uid, mode); err != nil {
		return fmt.Errorf("state directory: %w", err)
	}
	if err := makeDir(d.runtime, 0, 0, 0o711, 0); err != nil {
		return fmt.Errorf("runtime directory: %w", err)
	}
	return nil
}

// makeDir creates path with its parents and gives it to uid and gid. If path exists, it must belong
// to root, uid or former.
func makeDir(path string, uid, gid int, mode fs.FileMode, former int) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	f, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := linux.Fstat(f)
	if err != nil {
		return err
	}
	if owner := int(st.Uid); owner != 0 && owner != uid && owner != former {
		return fmt.Errorf("%q belongs to user %d: must belong to root or user %d; chown it or name another", path, owner, uid)
	}
	if err := f.Chown(uid, gid); err != nil {
		return err
	}
	return f.Chmod(mode)
}

// letIn gives path, a directory that root owns and others may not write to, an ACL that grants the
// user uid all rights. The group gets no more rights than others, because it may have members
// besides the daemon. On a file system without ACLs, the group keeps the rights of mode.
func letIn(path string, uid int, mode fs.FileMode) error {
	f, err := os.OpenFile(path, unix.O_DIRECTORY|unix.O_NOFOLLOW, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	err = linux.Retry(func() error {
		return unix.Fsetxattr(int(f.Fd()), "system.posix_acl_access", accessList(uint32(uid), uint16(mode&7)), 0)
	})
	if err != nil && err != unix.EOPNOTSUPP {
		return &fs.PathError{Op: "fsetxattr(system.posix_acl_access)", Path: path, Err: err}
	}
	return nil
}

// accessList returns an ACL in the format of include/uapi/linux/posix_acl_xattr.h: a version, then
// entries of tag, permissions and ID, in this order of tags.
func accessList(uid uint32, others uint16) []byte {
	const all, none = 7, ^uint32(0)
	acl := binary.LittleEndian.AppendUint32(nil, 2)
	for _, entry := range []struct {
		tag, rights uint16
		id          uint32
	}{
		{0x01, all, none}, {0x02, all, uid}, {0x04, others, none}, // owner, the user, the group
		{0x10, all, none}, {0x20, others, none}, // mask, others
	} {
		acl = binary.LittleEndian.AppendUint16(acl, entry.tag)
		acl = binary.LittleEndian.AppendUint16(acl, entry.rights)
		acl = binary.LittleEndian.AppendUint32(acl, entry.id)
	}
	return acl
}

// asUser calls fn with no more file system rights than a, because files in a directory of the
// daemon's may be a trap for root.
func asUser(a account, fn func() error) error {
	if os.Geteuid() != 0 {
		return fn()
	}
	return linux.OnThrowawayThread(func() error {
		// Raw calls: those of package syscall would change all threads.
		groups := [1]uint32{uint32(a.gid)}
		if err := rawSetgroups(groups[:]); err != nil {
			return err
		}
		if err := unix.Setfsgid(a.gid); err != nil {
			return os.NewSyscallError("setfsgid", err)
		}
		if err := unix.Setfsuid(a.uid); err != nil {
			return os.NewSyscallError("setfsuid", err)
		}
		// setfsuid(2) reports no error.
		if uid, err := unix.SetfsuidRetUid(-1); err != nil || uid != a.uid {
			return errors.Join(fmt.Errorf("setfsuid: still user %d", uid), err)
		}
		return fn()
	})
}
