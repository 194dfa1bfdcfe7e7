package mounts

import (
	"cmp"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
)

// TreeOptions says how a source appears in a box.
type TreeOptions struct {
	ReadOnly bool
	// Map translates owners, and UserNS carries it, see [UserNS]. The caller keeps
	// UserNS. If it is nil, owners are not translated.
	Map    IDMap
	UserNS *os.File
}

// Tree creates a detached mount of exactly the checked source, without the mounts below it:
// nosuid, nodev, private, and with the options o. The caller owns it, and attaches it with
// [Attach]; then the mount stays when the descriptor is closed.
func (s *Source) Tree(o TreeOptions) (_ *os.File, err error) {
	tree, err := linux.OpenTree(s.File, "", unix.OPEN_TREE_CLONE|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, fmt.Errorf("cloning mount source %q: %w", s.Path, err)
	}
	defer func() {
		if err != nil {
			tree.Close()
		}
	}()
	attr := unix.MountAttr{
		Attr_set: unix.MOUNT_ATTR_NOSUID | unix.MOUNT_ATTR_NODEV,
		// Mounts on one side must not appear on the other.
		Propagation: unix.MS_PRIVATE,
	}
	if o.ReadOnly {
		attr.Attr_set |= unix.MOUNT_ATTR_RDONLY
	}
	mapped := attr
	if o.UserNS != nil {
		mapped.Attr_set |= unix.MOUNT_ATTR_IDMAP
		mapped.Userns_fd = uint64(o.UserNS.Fd())
	}
	if err := linux.MountSetattr(tree, false, mapped); err != nil {
		return nil, s.explain(tree, attr, o, err)
	}
	if err := s.verify(tree, o); err != nil {
		return nil, err
	}
	return tree, nil
}

// explain finds out whether mount_setattr refused the ID map. The call changes either all
// attributes or none, so the tree is unchanged.
func (s *Source) explain(tree *os.File, plain unix.MountAttr, o TreeOptions, err error) error {
	if o.UserNS == nil || linux.MountSetattr(tree, false, plain) != nil {
		return fmt.Errorf("setting attributes of mount source %q: %w", s.Path, err)
	}
	// mount_setattr(2): EPERM can mean that the mount already has an ID map.
	if errors.Is(err, unix.EPERM) {
		return refuse(spec.MountSource, s.Path, "cannot be id-mapped: it lies on a mount that is id-mapped already, or on a file system of another user namespace").Because(err)
	}
	kind := cmp.Or(s.place.fs.FSType, "volume's")
	return refuse(spec.MountSource, s.Path, "lies on a %s file system, which this kernel cannot id-map: use a directory on ext4, xfs or btrfs (tmpfs needs Linux 6.3)", kind).Because(err)
}

// verify checks the attributes that are in force, rather than trusting the system call: a
// mount without them would give the box the owner's rights on the host.
func (s *Source) verify(tree *os.File, o TreeOptions) error {
	fs, err := linux.Fstatfs(tree)
	if err != nil {
		return err
	}
	want := int64(unix.ST_NOSUID | unix.ST_NODEV)
	if o.ReadOnly {
		want |= unix.ST_RDONLY
	}
	if fs.Flags&want != want {
		return fmt.Errorf("mount source %q: the mount has flags %#x, want %#x", s.Path, fs.Flags, want)
	}
	if o.UserNS == nil {
		return nil
	}
	uid, known := lookup(o.Map.UIDs, s.UID)
	gid, gidKnown := lookup(o.Map.GIDs, s.GID)
	if !known || !gidKnown {
		return fmt.Errorf("mount source %q: its owner %d:%d is not in the id map %q", s.Path, s.UID, s.GID, o.Map)
	}
	got, err := linux.Fstat(tree)
	if err != nil {
		return err
	}
	// The owner may have changed since Open. That gives the box nothing: an ID outside of
	// the map gives no access.
	if got.Uid != uid || got.Gid != gid {
		return fmt.Errorf("mount source %q: mapped owner is %d:%d, want %d:%d", s.Path, got.Uid, got.Gid, uid, gid)
	}
	return nil
}
