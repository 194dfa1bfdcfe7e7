package volumes

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/internal/linux"
)

// An image is an ext4 without a journal in a sparse file: what is not used takes no
// space. In it there are
//
//	root      the root of the volume
//	ballast   a file that takes up what the image has beyond the volume's limit
//
// Without a journal what was written shortly before a loss of power may be lost, and
// the image is checked before it is mounted again.
const (
	rootName    = "root"
	ballastName = "ballast"
)

// makeImage makes a volume as an image. The image appears under its name when there is a
// file system in it.
func (s *Store) makeImage(name string, bytes, inodes int64) (err error) {
	noLoop := func(err error) error { return fmt.Errorf("%w: %w; and %w", ErrNoLoop, err, s.noQuota) }
	// Asked first, because a host without loop devices should not need e2fsprogs to say so.
	control, err := openControl()
	if err != nil {
		return noLoop(err)
	}
	control.Close()
	var undo cleanup.Stack
	defer undo.Undo(&err)
	temp := newName()
	image, err := openFile(s.dir, temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer image.Close()
	undo.Push(func() error { return unlink(s.dir, temp) })
	if err := format(image, bytes, inodes); err != nil {
		if errors.Is(err, errNoTool) {
			return noLoop(err)
		}
		return err
	}
	r := record{By: ByImage, Bytes: bytes, Inodes: inodes}
	undo.Push(func() error { return s.forget(name, r) })
	if err := s.writeFile(name+recordSuffix, r); err != nil {
		return err
	}
	if err := rename(s.dir, temp, s.dir, name+imageSuffix, false); err != nil {
		return err
	}
	undo.Push(func() error { return s.removeImage(name) })
	top, err := s.mountImage(name, r)
	if err != nil {
		// The kernel may do without loop devices, or without ext4.
		if errors.Is(err, unix.ENODEV) || errors.Is(err, errNoDevice) {
			return noLoop(err)
		}
		return err
	}
	undo.Release()
	return top.Close()
}

// growImage gives the image new limits: the record first, so that the next mount goes on if
// this process is killed.
func (s *Store) growImage(name string, r record, bytes, inodes int64) error {
	if bytes < r.Bytes || inodes < r.Inodes {
		return fmt.Errorf("%w: has %d bytes and %d inodes, asked for %d and %d: remove it and make it anew",
			ErrShrink, r.Bytes, r.Inodes, bytes, inodes)
	}
	if bytes == r.Bytes && inodes == r.Inodes {
		return nil
	}
	old := r
	r.Bytes, r.Inodes = bytes, inodes
	if err := s.writeFile(name+recordSuffix, r); err != nil {
		return err
	}
	err := s.refit(name, r)
	if err != nil {
		return errors.Join(err, s.writeFile(name+recordSuffix, old))
	}
	return nil
}

// refit makes an image fit its record, whether it is mounted or not.
func (s *Store) refit(name string, r record) error {
	top, err := s.mountImage(name, r)
	if err != nil {
		return err
	}
	err = s.fitMounted(name, top, r)
	top.Close()
	if !errors.Is(err, errOffline) {
		return err
	}
	if err := s.growOffline(name); err != nil {
		return err
	}
	if top, err = s.mountImage(name, r); err != nil {
		return err
	}
	return top.Close()
}

// imageRoot returns the root of an image.
func (s *Store) imageRoot(name string, r record) (*os.File, error) {
	top, err := s.mountImage(name, r)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	flags, err := linux.MountFlags(top)
	if err != nil {
		return nil, err
	}
	if flags&unix.ST_RDONLY != 0 {
		return nil, fmt.Errorf("its file system has become read-only after an error: it is checked when nothing uses it any more and it is mounted again")
	}
	return openDir(top, rootName, unix.O_PATH)
}

// removeImage deletes the image of a volume, and its mount.
func (s *Store) removeImage(name string) error {
	if err := s.unmount(name, 0); errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("%w: a descriptor of it is open", ErrBusy)
	} else if err != nil {
		return err
	}
	image, err := openFile(s.dir, name+imageSuffix, unix.O_RDONLY)
	if err != nil {
		// No image, but in the place of one: nothing is mounted of it.
		return s.throwAway(name + imageSuffix)
	}
	defer image.Close()
	if err := awaitDetached(image); err != nil {
		return err
	}
	return unlink(s.dir, name+imageSuffix)
}

// adoptImage finds out what the record of an image was.
func (s *Store) adoptImage(name string) (record, error) {
	image, err := openFile(s.dir, name+imageSuffix, unix.O_RDWR)
	if err != nil {
		return record{}, err
	}
	defer image.Close()
	// With limits of nothing it is left as it is.
	top, err := s.mountImage(name, record{By: ByImage})
	if err != nil {
		return record{}, err
	}
	defer top.Close()
	u, err := measure(top)
	if err != nil {
		return record{}, err
	}
	r := record{By: ByImage, Bytes: min(max(u.capacity()*block, MinBytes), MaxBytes), Inodes: min(max(u.inodes, MinInodes), MaxInodes)}
	return r, nil
}

// imageUse fills in what an image says of itself. Whatever is mounted is asked; what
// is not is read.
func (s *Store) imageUse(name string, r record, st *State) error {
	image, err := openFile(s.dir, name+imageSuffix, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer image.Close()
	dev, err := findLoop(image)
	if err != nil {
		return err
	}
	var free, freeInodes, inodes int64
	if dev == nil {
		sb, err := readSuper(image)
		if err != nil {
			return err
		}
		free, freeInodes, inodes = sb.freeBlocks-min(sb.blocks/50, 4096), sb.freeInodes, sb.inodes-ownInodes
	} else {
		defer dev.Close()
		mounted := s.isMounted(name)
		top, err := s.mountImage(name, r)
		if err != nil {
			return err
		}
		u, err := measure(top)
		top.Close()
		if !mounted {
			err = errors.Join(err, s.unmount(name, unix.MNT_DETACH))
		}
		if err != nil {
			return err
		}
		free, freeInodes, inodes = u.avail, u.freeInodes, u.inodes
	}
	st.Inodes = max(st.Inodes, inodes)
	st.UsedBytes = max(r.Bytes-max(free, 0)*block, 0)
	st.UsedInodes = max(inodes-freeInodes, 0)
	return nil
}
