package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/internal/linux"
)

// mountImage returns the top directory of an image. If necessary, it mounts the image and fits
// it to its record. A volume that should have grown but cannot now is still usable. The caller
// closes the directory and has locked the volume.
func (s *Store) mountImage(name string, r volumeRecord) (*os.File, error) {
	top, fresh, err := s.mountOnce(name)
	if err != nil || !fresh {
		return top, err
	}
	fitting := s.fitMounted(name, top, r)
	if errors.Is(fitting, errOffline) {
		top.Close()
		fitting = s.growOffline(name, 0)
		if top, _, err = s.mountOnce(name); err != nil {
			return nil, errors.Join(err, fitting)
		}
		if fitting == nil {
			fitting = s.fitMounted(name, top, r)
		}
	}
	if fitting == nil {
		return top, nil
	}
	u, err := measure(top)
	if err == nil && u.capacity() <= r.Bytes/block {
		return top, nil
	}
	return nil, errors.Join(err, fitting, top.Close(), s.unmount(name, unix.MNT_DETACH))
}

// mountOnce returns the top directory of an image without fitting it. fresh means that it was
// not mounted before.
func (s *Store) mountOnce(name string) (_ *os.File, fresh bool, err error) {
	if top, err := s.mountedTop(name); top != nil || err != nil {
		return top, false, err
	}
	image, err := openFile(s.dir, name+imageSuffix, unix.O_RDWR)
	if err != nil {
		return nil, false, err
	}
	defer image.Close()
	dev, err := s.attachChecked(image)
	if err != nil {
		return nil, false, err
	}
	defer dev.Close()
	// Mounting is safe because only the kernel has written the image: writers of the volume
	// have no access to the device or the file.
	tree, err := linux.NewMount("ext4", unix.MOUNT_ATTR_NOSUID|unix.MOUNT_ATTR_NODEV|unix.MOUNT_ATTR_NOATIME,
		linux.Option{Key: "source", Value: dev.Name()},
		linux.Option{Key: "errors", Value: "remount-ro"},
		linux.Option{Key: "discard"}, linux.Option{Key: "noinit_itable"})
	if err != nil {
		return nil, false, err
	}
	defer tree.Close()
	if err := isOn(tree, dev); err != nil {
		return nil, false, err
	}
	if err := linux.MkdirAt(s.private, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, false, err
	}
	point, err := linux.OpenDirAt(s.private, name, unix.O_PATH)
	if err != nil {
		return nil, false, err
	}
	defer point.Close()
	if err := linux.MoveMount(tree, point, ""); err != nil {
		return nil, false, err
	}
	var undo cleanup.Stack
	defer undo.Undo(&err)
	undo.Push(func() error { return s.unmount(name, unix.MNT_DETACH) })
	top, err := s.mountedTop(name)
	if err != nil {
		return nil, false, err
	}
	if top == nil {
		return nil, false, fmt.Errorf("%q is not a mount point after mounting there", s.private.Name()+"/"+name)
	}
	if err := s.furnish(top); err != nil {
		top.Close()
		return nil, false, err
	}
	undo.Release()
	return top, true, nil
}

// attachChecked returns the loop device of image. If it has none, attachChecked binds a free
// one, after repairing an image that was in use during a power failure. The caller has locked
// the volume.
func (s *Store) attachChecked(image *os.File) (*os.File, error) {
	dev, err := findLoop(image)
	if dev != nil || err != nil {
		return dev, err
	}
	sb, err := readSuper(image)
	if err != nil {
		return nil, err
	}
	if !sb.clean {
		if err := check(context.Background(), image); err != nil {
			return nil, err
		}
	}
	return bindLoop(image)
}

// isOn checks that tree is a mount of the device dev.
func isOn(tree, dev *os.File) error {
	st, err := linux.Fstat(tree)
	if err != nil {
		return err
	}
	node, err := linux.Fstat(dev)
	if err != nil {
		return err
	}
	if st.Dev != node.Rdev {
		return fmt.Errorf("mounting %s gave device %d:%d", dev.Name(), unix.Major(st.Dev), unix.Minor(st.Dev))
	}
	return nil
}

// furnish completes the content of an image's top directory.
func (s *Store) furnish(top *os.File) error {
	if _, err := linux.StatAt(top, rootName); !errors.Is(err, unix.ENOENT) {
		return err
	}
	for _, left := range []string{"lost+found", rootName + ".new"} {
		if err := linux.RmdirAt(top, left); err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	ballast, err := openFile(top, ballastName, unix.O_RDWR|unix.O_CREAT)
	if err != nil {
		return err
	}
	ballast.Close()
	if err := linux.MkdirAt(top, rootName+".new", 0o700); err != nil {
		return err
	}
	if err := linux.Fchownat(top, rootName+".new", s.uid, s.gid); err != nil {
		return err
	}
	return linux.RenameNew(top, rootName+".new", top, rootName)
}

// mountedTop opens the top directory of a volume's mounted image. It returns nil if the image
// is not mounted.
func (s *Store) mountedTop(name string) (*os.File, error) {
	f, err := linux.Openat2(s.private, name, unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS,
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	here, err := linux.Fstat(s.private)
	if err == nil {
		var there unix.Stat_t
		if there, err = linux.Fstat(f); err == nil && here.Dev != there.Dev {
			return f, nil
		}
	}
	f.Close()
	return nil, err
}

func (s *Store) isMounted(name string) bool {
	f, _ := s.mountedTop(name)
	if f != nil {
		f.Close()
	}
	return f != nil
}

// unmount unmounts the image of a volume. It is not an error if it is not mounted.
func (s *Store) unmount(name string, flags int) error {
	err := linux.Unmount(linux.FdPath(s.private)+"/"+name, unix.UMOUNT_NOFOLLOW|flags)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: no mount point
		return err
	}
	// Removing the mount point also unmounts copies in namespaces that were created
	// meanwhile, so that none of them keeps the image. Boxes mount it elsewhere.
	if err := linux.RmdirAt(s.private, name); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// unmountSoon is unmount without MNT_DETACH. It waits a moment for threads in the volume to
// end, and then fails with ErrBusy.
func (s *Store) unmountSoon(name string) error {
	for until := time.Now().Add(200 * time.Millisecond); ; time.Sleep(time.Millisecond) {
		err := s.unmount(name, 0)
		if !errors.Is(err, unix.EBUSY) {
			return err
		}
		if time.Now().After(until) {
			return fmt.Errorf("%w: a descriptor of it is open", ErrBusy)
		}
	}
}

// unmountAll unmounts everything in the private directory.
func (s *Store) unmountAll() error {
	names, err := linux.ReadNames(s.private)
	if err != nil {
		return err
	}
	var failed []error
	for _, name := range names {
		failed = append(failed, s.unmount(name, unix.MNT_DETACH))
	}
	return errors.Join(failed...)
}

// checkPropagation refuses a directory whose mounts would propagate to other namespaces.
func checkPropagation(dir *os.File) error {
	st, err := linux.Statx(dir, unix.STATX_MNT_ID)
	if err != nil {
		return err
	}
	mounts, err := linux.ReadMountInfo()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(mounts, func(m linux.MountInfo) bool { return m.ID == st.Mnt_id })
	if i < 0 {
		return fmt.Errorf("mount directory %q: mount %d is not in the list of mounts", dir.Name(), st.Mnt_id)
	}
	if mounts[i].Shared {
		return refuse("mount directory", dir.Name(), "is on a shared mount: mounts there would propagate to other namespaces")
	}
	return nil
}
