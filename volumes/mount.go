package volumes

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/internal/linux"
)

// mountImage returns the top directory of an image. If it is not mounted, it is, and is
// made to fit its record, if that is possible now: a volume that should have grown can
// be used meanwhile. The caller closes it and has locked the volume.
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

// mountOnce returns the top directory of an image, as it is; fresh says that it was not
// mounted.
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
	// What is in the image is the work of the kernel alone. Those who write to the volume
	// have no way to the device or the file.
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
	point, err := openDir(s.private, name, unix.O_PATH)
	if err != nil {
		return nil, false, err
	}
	defer point.Close()
	if err := linux.MoveMount(tree, point, "", 0); err != nil {
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
		return nil, false, fmt.Errorf("%q is no mount point after mounting there", s.private.Name()+"/"+name)
	}
	if err := s.furnish(top); err != nil {
		top.Close()
		return nil, false, err
	}
	undo.Release()
	return top, true, nil
}

// attachChecked returns the loop device of image: the one that has it, or a free one, after
// checking an image that was in use when the power went. The caller has locked the volume.
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
		if err := check(image); err != nil {
			return nil, err
		}
	}
	return bindLoop(image)
}

// isOn makes sure that the mount tree is of the device dev.
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

// furnish makes what is in the top directory of an image, if it is not all there.
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
	return rename(top, rootName+".new", top, rootName, false)
}

// mountedTop opens the top directory of the image that is mounted for a volume, nil
// if none is.
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

// unmount takes the mount of a volume away; it is no error if there is none.
func (s *Store) unmount(name string, flags int) error {
	err := linux.Unmount(linux.FdPath(s.private)+"/"+name, unix.UMOUNT_NOFOLLOW|flags)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil && !errors.Is(err, unix.EINVAL) { // EINVAL: no mount point
		return err
	}
	// Which also takes away the copies in namespaces that are being made meanwhile, so that
	// none keeps the image; boxes have theirs elsewhere.
	if err := linux.RmdirAt(s.private, name); err != nil && !errors.Is(err, unix.ENOENT) {
		return err
	}
	return nil
}

// unmountSoon is unmount for whoever needs it gone: ErrBusy after a moment, in which a
// thread that was in the volume may end.
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

// unmountAll takes all mounts away from the private directory.
func (s *Store) unmountAll() error {
	names, err := entries(s.private)
	if err != nil {
		return err
	}
	var failed []error
	for _, name := range names {
		failed = append(failed, s.unmount(name, unix.MNT_DETACH))
	}
	return errors.Join(failed...)
}

// checkPropagation refuses a directory on a mount that others see the mounts of.
func checkPropagation(dir *os.File) error {
	st, err := linux.Statx(dir, unix.STATX_MNT_ID)
	if err != nil {
		return err
	}
	f, err := os.Open("/proc/thread-self/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	id := strconv.FormatUint(st.Mnt_id, 10)
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 7 || fields[0] != id {
			continue
		}
		for _, optional := range fields[6:] { // proc_pid_mountinfo(5): up to a "-"
			if optional == "-" {
				return nil
			}
			if strings.HasPrefix(optional, "shared:") {
				return refuse("mount directory", dir.Name(), "is on a shared mount: what is mounted there would be seen in other namespaces")
			}
		}
	}
	return errors.Join(lines.Err(), fmt.Errorf("mount directory %q: mount %s is not in the list of mounts", dir.Name(), id))
}
