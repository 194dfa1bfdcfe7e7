package volumes

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/trash"
)

// An image is an ext4 file system without a journal in a sparse file, so unused space takes
// no room. Its top directory contains
//
//	root      the root of the volume
//	ballast   a file that takes up what the image has beyond the volume's limit
//
// Since there is no journal, the latest writes may be lost in a power failure, and the
// image is checked before it is mounted again.
const (
	rootName    = "root"
	ballastName = "ballast"
)

// makeImage creates a volume as an image. The image gets its name when it contains a file
// system.
func (s *Store) makeImage(name string, bytes, inodes int64) (err error) {
	noLoop := func(err error) error { return fmt.Errorf("%w: %w; and %w", ErrNoLoop, err, s.noQuota) }
	// Check this first, so that a host without loop devices says so even without e2fsprogs.
	control, err := openControl()
	if err != nil {
		return noLoop(err)
	}
	control.Close()
	var undo cleanup.Stack
	defer undo.Undo(&err)
	temp := trash.NewName()
	image, err := openFile(s.dir, temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer image.Close()
	undo.Push(func() error { return linux.UnlinkAt(s.dir, temp) })
	if err := format(image, bytes, inodes); err != nil {
		if errors.Is(err, errNoTool) {
			return noLoop(err)
		}
		return err
	}
	r := volumeRecord{By: ByImage, Bytes: bytes, Inodes: inodes}
	undo.Push(func() error { return errors.Join(s.removeImage(name), s.forget(name, r)) })
	if err := s.place(temp, name, r); err != nil {
		return err
	}
	top, err := s.mountImage(name, r)
	if err != nil {
		// The kernel may lack loop devices or ext4.
		if errors.Is(err, unix.ENODEV) || errors.Is(err, errNoDevice) {
			return noLoop(err)
		}
		return err
	}
	undo.Release()
	return top.Close()
}

// place gives the image temp, which contains a file system, to the new volume name. The record
// goes first, see [volumeRecord].
func (s *Store) place(temp, name string, r volumeRecord) error {
	if err := s.writeFile(name+recordSuffix, r); err != nil {
		return err
	}
	return linux.RenameNew(s.dir, temp, s.dir, name+imageSuffix)
}

// growImage gives the image new limits. It writes the record first, so that the next mount
// continues if this process is killed.
func (s *Store) growImage(name string, r volumeRecord, bytes, inodes int64) error {
	if bytes < r.Bytes || inodes < r.Inodes {
		return fmt.Errorf("%w: has %d bytes and %d inodes, asked for %d and %d: remove it and make it anew",
			ErrShrink, r.Bytes, r.Inodes, bytes, inodes)
	}
	old := r
	r.Bytes, r.Inodes = bytes, inodes
	if r == old {
		return s.refit(name, r) // an earlier attempt may have failed
	}
	if err := s.writeFile(name+recordSuffix, r); err != nil {
		return err
	}
	if err := s.refit(name, r); err != nil {
		return errors.Join(err, s.writeFile(name+recordSuffix, old))
	}
	return nil
}

// refit makes an image fit its record, whether it is mounted or not.
func (s *Store) refit(name string, r volumeRecord) error {
	top, err := s.mountImage(name, r)
	if err != nil {
		return err
	}
	err = s.fitMounted(name, top, r)
	top.Close()
	if !errors.Is(err, errOffline) {
		return err
	}
	if err := s.growOffline(name, 2*time.Second); err != nil {
		return err
	}
	if top, err = s.mountImage(name, r); err != nil {
		return err
	}
	defer top.Close()
	return s.fitMounted(name, top, r)
}

// imageRoot returns the root of an image.
func (s *Store) imageRoot(name string, r volumeRecord) (*os.File, error) {
	top, err := s.mountImage(name, r)
	if err != nil {
		return nil, err
	}
	defer top.Close()
	if err := tryWrite(top); err != nil {
		return nil, err
	}
	return linux.OpenDirAt(top, rootName, unix.O_PATH)
}

// tryWrite returns an error if a file system has become read-only. It creates a nameless file
// to find out: since Linux 6.15, no flag of an ext4 mount shows it (EXT4_FLAGS_EMERGENCY_RO).
func tryWrite(top *os.File) error {
	f, err := nameless(top)
	f.Close() // a nil file is fine
	if errors.Is(err, unix.EROFS) {
		return fmt.Errorf("its file system has become read-only after an error: it is checked when nothing uses it any more and it is mounted again: %w", err)
	}
	return nil // if it is full, writers will find out
}

// removeImage deletes the image of a volume and its mount. Other mounts and open files of it
// stay usable, with its limits. When the last of them is gone, the device and the space are
// free.
func (s *Store) removeImage(name string) error {
	if err := s.unmount(name, unix.MNT_DETACH); err != nil {
		return err
	}
	err := linux.UnlinkAt(s.dir, name+imageSuffix)
	if errors.Is(err, unix.EISDIR) {
		return s.throwAway(name + imageSuffix)
	}
	return err
}

// adoptImage reconstructs the record of an image. It does not leave the image mounted.
func (s *Store) adoptImage(name string) (volumeRecord, error) {
	top, _, err := s.mountOnce(name)
	if err != nil {
		return volumeRecord{}, err
	}
	u, err := measure(top)
	if err = errors.Join(err, top.Close(), s.unmount(name, unix.MNT_DETACH)); err != nil {
		return volumeRecord{}, err
	}
	r := volumeRecord{By: ByImage, Bytes: min(max(u.capacity()*block, MinBytes), MaxBytes), Inodes: min(max(u.inodes, MinInodes), MaxInodes)}
	return r, nil
}

// imageUse fills in the usage of an image: from the file system if it is mounted, otherwise
// from its super block.
func (s *Store) imageUse(name string, r volumeRecord, st *State) error {
	image, err := openFile(s.dir, name+imageSuffix, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer image.Close()
	dev, err := findLoop(image)
	if err != nil {
		return err
	}
	var used, freeInodes, inodes int64
	if dev == nil {
		sb, err := readSuper(image)
		if err != nil {
			return err
		}
		free := max(sb.freeBlocks-min(sb.blocks/50, 4096), 0) // without the reserve of ext4
		used, freeInodes, inodes = r.Bytes/block-free, sb.freeInodes, sb.inodes-ownInodes
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
		used, freeInodes, inodes = u.used, u.freeInodes, u.inodes
	}
	st.Inodes = max(st.Inodes, inodes)
	st.UsedBytes = max(used*block, 0)
	st.UsedInodes = max(inodes-freeInodes, 0)
	return nil
}
