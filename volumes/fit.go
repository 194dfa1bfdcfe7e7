package volumes

import (
	"errors"
	"fmt"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// use is what the file system of an image says, in blocks.
type use struct {
	used, avail        int64 // by the volume; for the volume
	ballast, size      int64 // of the ballast: on disk with its metadata; as a file
	inodes, freeInodes int64 // for the volume
}

// capacity is what the volume can hold.
func (u use) capacity() int64 { return u.used + u.avail }

// measure asks the file system that top is the top directory of.
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
	// Two are the top directory and the index of blocks that are kept for growing.
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

// fit makes the volume hold what its record says: the image grows if it is too small,
// and its ballast takes what is too much. It changes nothing where nothing is to be
// done, and goes on where a killed process has stopped.
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
	return fmt.Errorf("the image does not become large enough for %d bytes and %d inodes", r.Bytes, r.Inodes)
}

// grow adds blocks for so many missing ones and for all of inodes.
func grow(top, image, dev *os.File, missing, inodes int64) error {
	// The device has what the mounted file system knows, the file maybe not yet.
	sb, err := readSuper(dev)
	if err != nil {
		return err
	}
	st, err := linux.Fstat(image)
	if err != nil {
		return err
	}
	tables := sb.inodesPerGroup * sb.inodeSize / block
	// Each new group has tables, bitmaps and maybe copies of the descriptors.
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
	size = max(size, st.Size/block) // what has grown before, in vain, never shrinks
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

// errOffline: without CAP_SYS_RESOURCE an image can grow only while nothing has it mounted.
var errOffline = errors.New("without CAP_SYS_RESOURCE a mounted image cannot grow")

// growOffline makes the file system of an image as large as the file, which has grown
// already. It waits for so long for a box to let go of it.
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
	if err := run([]string{"/usr/sbin/resize2fs", "/sbin/resize2fs", "/usr/bin/resize2fs"}, image, 0, "-f"); err != nil {
		return fmt.Errorf("growing the file system: %w", err)
	}
	return nil
}

// awaitDetached waits for the loop device of image to go, since a mount that a box
// had may end a little after the box: else ErrBusy.
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

// trim changes the ballast so that the volume can hold want blocks. Of one in which more
// is in use than that it takes all that is left: nothing can be added.
func trim(top *os.File, want int64) error {
	ballast, err := openFile(top, ballastName, unix.O_RDWR)
	if err != nil {
		return err
	}
	defer ballast.Close()
	// The list of what the ballast consists of may take a block, or give one back, and
	// others may write to the volume meanwhile.
	for range 8 {
		u, err := measure(top)
		if err != nil {
			return err
		}
		excess := u.capacity() - want
		switch {
		case excess > 0 && u.avail > 0:
			err = linux.Retry(func() error {
				return unix.Fallocate(int(ballast.Fd()), 0, 0, (u.size+min(excess, u.avail))*block)
			})
			if err == unix.ENOSPC { // somebody was faster, or the list takes the last one
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
