package volumes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// use is the usage of an image's file system, in blocks.
type use struct {
	used, avail        int64 // used by the volume; available to it
	ballast, size      int64 // of the ballast: on disk with its metadata; as a file
	inodes, freeInodes int64 // for the volume
}

// capacity returns how much the volume can hold.
func (u use) capacity() int64 { return u.used + u.avail }

// measure returns the usage of the file system whose top directory is top.
func measure(top *os.File) (use, error) {
	fs, err := linux.Fstatfs(top)
	if err != nil {
		return use{}, err
	}
	ballast, err := linux.StatAt(top, ballastName)
	if err != nil {
		return use{}, err
	}
	u := use{avail: int64(fs.Bavail), ballast: ballast.Blocks * 512 / block, size: ballast.Size / block}
	// Two blocks are the top directory and the index of blocks that are reserved for growth.
	u.used = int64(fs.Blocks) - int64(fs.Bfree) - u.ballast - 2
	u.inodes, u.freeInodes = int64(fs.Files)-ownInodes, int64(fs.Ffree)
	return u, nil
}

// fitMounted is fit for an image that is mounted.
func (s *Store) fitMounted(name string, top *os.File, r volumeRecord) error {
	image, err := openFile(s.dir, name+imageSuffix, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer image.Close()
	dev, err := findLoop(image)
	if err != nil {
		return err
	}
	if dev == nil {
		return fmt.Errorf("no loop device is bound to %q, which is mounted", image.Name())
	}
	defer dev.Close()
	return fit(top, image, dev, r)
}

// fit makes the capacity of the volume match its record: it grows an image that is too small,
// and fills any excess with the ballast. It continues the work of a killed process, and
// changes nothing if everything fits.
func fit(top, image, dev *os.File, r volumeRecord) error {
	want := r.Bytes / block
	for range 8 {
		u, err := measure(top)
		if err != nil {
			return err
		}
		missing := want - u.capacity() - u.ballast
		if missing <= 0 && u.inodes >= r.Inodes {
			return trim(top, want)
		}
		if err := grow(top, image, dev, missing, r.Inodes); err != nil {
			return fmt.Errorf("growing the image: %w", err)
		}
	}
	return fmt.Errorf("the image does not grow large enough for %d bytes and %d inodes", r.Bytes, r.Inodes)
}

// grow grows the image so that the volume has missing more blocks, and inodes in total.
func grow(top, image, dev *os.File, missing, inodes int64) error {
	// Read the super block from the device: the file may not be up to date yet.
	sb, err := readSuper(dev)
	if err != nil {
		return err
	}
	st, err := linux.Fstat(image)
	if err != nil {
		return err
	}
	tables := sb.inodesPerGroup * sb.inodeSize / block
	// Each new group has tables, bitmaps and possibly copies of the descriptors.
	overhead := tables + 2 + 64
	size := sb.blocks
	if missing > 0 {
		size += missing + (missing/(groupBlocks-overhead)+1)*overhead + missing/50 + 64
	}
	// A partial last group has all of its inodes.
	groups := (inodes + ownInodes + sb.inodesPerGroup - 1) / sb.inodesPerGroup
	size = max(size, (groups-1)*groupBlocks+1)
	if rest := size % groupBlocks; rest != 0 {
		size += max(0, tables+2048-rest)
	}
	size = max(size, st.Size/block) // never shrink it after an earlier, failed attempt
	if err := image.Truncate(size * block); err != nil {
		return err
	}
	if err := linux.LoopSetCapacity(dev); err != nil {
		return err
	}
	err = linux.Ext4Resize(top, uint64(size))
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: %w", errOffline, err)
	}
	return err
}

// errOffline means that the image can grow only while it is not mounted, for lack of
// CAP_SYS_RESOURCE.
var errOffline = errors.New("without CAP_SYS_RESOURCE a mounted image cannot grow")

// growOffline makes the file system of an image as large as the file, which has already
// grown. It waits for at most patience until no box uses the image.
func (s *Store) growOffline(name string, patience time.Duration) error {
	if err := s.unmountSoon(name); err != nil {
		return fmt.Errorf("%w, and %w", err, errOffline)
	}
	image, err := openFile(s.dir, name+imageSuffix, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer image.Close()
	if err := awaitDetached(image, patience); err != nil {
		return fmt.Errorf("%w, and %w", err, errOffline)
	}
	if err := run(context.Background(), "resize2fs", image, 0, "-f"); err != nil {
		return fmt.Errorf("growing the file system: %w", err)
	}
	return nil
}

// awaitDetached waits until image has no loop device, since the mount of a box may end a
// little after the box. If that takes longer than patience, the error is ErrBusy.
func awaitDetached(image *os.File, patience time.Duration) error {
	for until := time.Now().Add(patience); ; time.Sleep(2 * time.Millisecond) {
		dev, err := findLoop(image)
		if dev == nil || err != nil {
			return err
		}
		dev.Close()
		if time.Now().After(until) {
			return fmt.Errorf("%w: %s is mounted somewhere else", ErrBusy, dev.Name())
		}
	}
}

// trim changes the ballast so that the volume can hold want blocks. If more is already in use,
// the ballast takes everything that is left, so that nothing can be added.
func trim(top *os.File, want int64) error {
	ballast, err := openFile(top, ballastName, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer ballast.Close()
	// The list of the ballast's blocks may need one block more or less, and others may write
	// to the volume meanwhile.
	for range 8 {
		u, err := measure(top)
		if err != nil {
			return err
		}
		excess := u.capacity() - want
		switch {
		case excess > 0 && u.avail > 0:
			err = linux.Fallocate(ballast, 0, (u.size+min(excess, u.avail))*block)
			if errors.Is(err, unix.ENOSPC) { // someone was faster, or the list took the last block
				err = nil
			}
		case excess < 0:
			err = ballast.Truncate(max(0, u.size+excess) * block)
		default:
			return nil
		}
		if err != nil {
			return fmt.Errorf("sizing the ballast: %w", err)
		}
	}
	return nil
}
