package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// Nobody can make a read-only root writable again from outside: the kernel has locked the
// mount (MNT_LOCK_READONLY, can_change_locked_flags in fs/namespace.c) and all of its clones.
// And it cannot be cloned without the mounts on it, which are locked as well
// (has_locked_children). So a root that another process can take over contains a second mount
// of its tmpfs, writable and without mounts on it. It has the skeleton, rootName, and what is
// beside that.
//
// This mount is in /dev, which is read-only even if the root is not, so that the box cannot
// rename directories above it. Its parent directory belongs to the host's root and only root
// can search it. No user of the box is mapped to that ID, so no capability in the box's user
// namespace overrides this (capable_wrt_inode_uidgid).
//
// A root of layers has its skeleton in an overlay, so a second mount of that is there as well.
const (
	hostDir    = ".host" // in /dev
	hostTop    = hostDir + "/top"
	hostMerged = hostDir + "/merged"
)

// reach attaches the second mounts.
func (b *builder) reach() error {
	if !b.host.reachable {
		return nil
	}
	m, err := linux.OpenTree(b.top, "", unix.OPEN_TREE_CLONE|unix.AT_EMPTY_PATH)
	if err != nil {
		return err
	}
	defer m.Close()
	if err := linux.MountSetattr(m, false, unix.MountAttr{Attr_set: attrDefault}); err != nil {
		return err
	}
	if err := attach(m, b.devices, hostTop); err != nil || len(b.o.Layers) == 0 {
		return err
	}
	return cloneTo(b.root.skeleton, b.devices, hostMerged, 0)
}

// Live is the root of a running box, seen through a process in it. It trusts paths only as
// far as the box cannot have changed them. It is for a single use, and its opener owns it.
type Live struct{ root *os.File }

// OpenLive opens the root of process pid, a process of a box whose root was built by a Host of
// OpenReachableHost. The caller must make sure that pid still is the intended process, by
// means of a pidfd that shows it alive afterwards.
func OpenLive(pid int) (*Live, error) {
	root, err := linux.Openat2(nil, fmt.Sprintf("/proc/%d/root", pid), unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
	if err != nil {
		return nil, fmt.Errorf("opening root of box: %w", err)
	}
	return &Live{root}, nil
}

// Close closes the descriptor.
func (l *Live) Close() error { return l.root.Close() }

// mounted opens a directory of the box that is the root of a mount.
func (l *Live) mounted(path string) (*os.File, unix.Statx_t, error) {
	dir, err := openDir(l.root, path)
	if err != nil {
		return nil, unix.Statx_t{}, err
	}
	st, err := linux.Statx(dir, unix.STATX_BASIC_STATS)
	if err == nil && st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
		err = fmt.Errorf("%q in the box: nothing is mounted there", "/"+path)
	}
	if err != nil {
		dir.Close()
		return nil, st, err
	}
	return dir, st, nil
}

// Skeleton is like that of Root, but the caller owns it.
func (l *Live) Skeleton() (*os.File, error) {
	dir, _, err := l.mounted("dev/" + hostMerged)
	if errors.Is(err, fs.ErrNotExist) {
		dir, err = l.beside(rootName)
	}
	if err != nil {
		return nil, fmt.Errorf("opening skeleton of box: %w", err)
	}
	return dir, nil
}

// beside opens a directory of the box's tmpfs, out of the box's reach.
func (l *Live) beside(name string) (*os.File, error) {
	top, _, err := l.mounted("dev/" + hostTop)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	return openDir(top, name)
}

// Device identifies a file system as long as it is mounted.
type Device struct{ Major, Minor uint32 }

// DeviceOf returns the file system of dir.
func DeviceOf(dir *os.File) (Device, error) {
	st, err := linux.Statx(dir, unix.STATX_BASIC_STATS)
	return Device{st.Dev_major, st.Dev_minor}, err
}

// Volume opens the file system dev, mounted at path, for fstatfs. The caller owns the
// descriptor. If another file system is mounted there, or none, Volume fails: a box can
// rearrange a writable root.
func (l *Live) Volume(path string, dev Device) (*os.File, error) {
	if path == "/" {
		return l.rootVolume(dev)
	}
	dir, st, err := l.mounted(strings.TrimPrefix(path, "/"))
	if err != nil {
		return nil, fmt.Errorf("opening volume %q: %w", path, err)
	}
	if (Device{st.Dev_major, st.Dev_minor}) != dev {
		dir.Close()
		return nil, fmt.Errorf("opening volume %q: another file system is mounted there", path)
	}
	return dir, nil
}

// rootVolume opens a file on the file system of the writable root. A descriptor of the root
// itself would give access to everything in it.
func (l *Live) rootVolume(dev Device) (*os.File, error) {
	f, err := linux.Openat2(l.root, "dev/"+sizeFile, unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, fmt.Errorf("opening volume %q: %w", "/", err)
	}
	st, err := linux.Statx(f, unix.STATX_BASIC_STATS)
	if err == nil && ((Device{st.Dev_major, st.Dev_minor}) != dev || st.Mode&unix.S_IFMT != unix.S_IFREG) {
		err = errors.New("opening volume \"/\": the box has put something else in its place")
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// OpenPTY is Root.OpenPTY with host IDs.
func (l *Live) OpenPTY(uid, gid int, rows, cols uint16) (master, slave *os.File, err error) {
	pts, _, err := l.mounted("dev/pts")
	if err != nil {
		return nil, nil, fmt.Errorf("opening a terminal: %w", err)
	}
	defer pts.Close()
	st, err := linux.Fstatfs(pts)
	if err == nil && st.Type != unix.DEVPTS_SUPER_MAGIC {
		err = errors.New("the box has no devpts")
	}
	if err != nil {
		return nil, nil, fmt.Errorf("opening a terminal: %w", err)
	}
	return openPTY(pts, uid, gid, rows, cols)
}
