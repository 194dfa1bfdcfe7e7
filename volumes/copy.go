package volumes

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/trash"
)

// Copy creates volume name with the content of volume from, which must not change meanwhile:
// if something writes to it, the error is ErrWritten, and nothing is left of the copy. It is
// ErrNoCopy if from is a directory with project quota. Limits of 0 are those of from; smaller
// ones are ErrShrink.
//
// The copy shares its blocks with from where the file system of the data directory can do that;
// otherwise all that is not a hole is copied, and progress, which may be nil, is called after
// each step with the bytes copied and the bytes that occupy disk space. Boxes can mount from
// meanwhile: it is locked only at the beginning. The copy gets its name when it is complete.
func (s *Store) Copy(ctx context.Context, from, name string, bytes, inodes int64, progress func(done, total int64)) (err error) {
	if err := checkName(name); err != nil {
		return err
	}
	var undo cleanup.Stack
	defer undo.Undo(&err)
	src, err := s.openForCopy(from)
	if err != nil {
		return err
	}
	defer src.close()
	r := src.record
	if bytes != 0 || inodes != 0 {
		asked := inodes
		if bytes, inodes, err = checkLimits(max(bytes, 0), inodes); err != nil {
			return err
		}
		if asked == 0 {
			inodes = max(inodes, r.Inodes)
		}
		if bytes < r.Bytes || inodes < r.Inodes {
			return fmt.Errorf("volume %q: %w: %q has %d bytes and %d inodes, asked for %d and %d", name, ErrShrink, from, r.Bytes, r.Inodes, bytes, inodes)
		}
		r.Bytes, r.Inodes = bytes, inodes
	}
	temp := trash.NewName()
	image, err := openFile(s.dir, temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
	if err != nil {
		return err
	}
	defer image.Close()
	undo.Push(func() error { return linux.UnlinkAt(s.dir, temp) })
	if err := copyImage(ctx, image, src.image, progress); err != nil {
		return fmt.Errorf("copying volume %q: %w", from, err)
	}
	after, err := src.activity()
	if err != nil {
		return err
	}
	if after != src.before {
		return fmt.Errorf("volume %q: %w", from, ErrWritten)
	}
	// The super block says that the file system is mounted.
	if err := check(ctx, image); err != nil {
		return err
	}
	if err := image.Sync(); err != nil {
		return err
	}
	return s.withLock(name, func() (err error) {
		var undo cleanup.Stack
		defer undo.Undo(&err)
		if _, err := s.load(name); err == nil {
			return ErrExists
		} else if !errors.Is(err, ErrUnknown) {
			return err
		}
		undo.Push(func() error { return errors.Join(s.removeImage(name), s.forget(name, r)) })
		if err := s.place(temp, name, r); err != nil {
			return err
		}
		top, err := s.mountImage(name, r) // which makes it as large as r says
		if err != nil {
			return err
		}
		undo.Release()
		return top.Close()
	})
}

// original is an image that is being copied. Its open descriptors keep it mounted.
type original struct {
	record          volumeRecord
	image, top, dev *os.File
	before          string // its activity before the copy
}

func (o *original) close() { linux.CloseAll([]*os.File{o.image, o.top, o.dev}) }

// openForCopy mounts the image of a volume, if necessary, and writes it to its file completely.
// While it is mounted, the kernel changes it only for those who write to it.
func (s *Store) openForCopy(name string) (o *original, err error) {
	err = s.withLock(name, func() error {
		r, err := s.load(name)
		if err != nil {
			return err
		}
		if r.By != ByImage {
			return ErrNoCopy
		}
		o = &original{record: r}
		if o.top, err = s.mountImage(name, r); err != nil {
			return err
		}
		if o.image, err = openFile(s.dir, name+imageSuffix, unix.O_RDONLY); err != nil {
			return err
		}
		if o.dev, err = findLoop(o.image); err == nil && o.dev == nil {
			err = fmt.Errorf("no loop device is bound to %q, which is mounted", o.image.Name())
		}
		if err == nil {
			o.before, err = o.activity()
		}
		return err
	})
	if err != nil && o != nil {
		o.close()
	}
	return o, err
}

// activity writes the image to its file completely, and returns what tells whether anything has
// been written since: the counters of the device, and the times of the file in case the host
// has switched the counters off.
func (o *original) activity() (string, error) {
	if err := linux.Syncfs(o.top); err != nil {
		return "", err
	}
	text, err := os.ReadFile("/sys/block/" + path.Base(o.dev.Name()) + "/stat")
	if err != nil {
		return "", err
	}
	st, err := linux.Fstat(o.image)
	if err != nil {
		return "", err
	}
	f := strings.Fields(string(text)) // Documentation/block/stat.rst: f[6] and f[13] count sectors
	if len(f) < 14 {                  // Linux 4.18 has counted discards first
		return "", fmt.Errorf("statistics of %s: %q", o.dev.Name(), text)
	}
	return fmt.Sprint("written ", f[6], " discarded ", f[13], " changed ", st.Mtim, st.Ctim), nil
}

// copyStep is how much is copied between two looks at the context.
const copyStep = 16 << 20

// copyImage makes the empty file to a copy of from.
func copyImage(ctx context.Context, to, from *os.File, progress func(done, total int64)) error {
	err := linux.Clone(to, from)
	if err == nil || !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EXDEV) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTTY) {
		return err
	}
	st, err := linux.Fstat(from)
	if err != nil {
		return err
	}
	total := st.Blocks * 512
	fs, err := linux.Fstatfs(to)
	if err != nil {
		return err
	}
	if free := int64(fs.Bavail) * fs.Bsize; free < total {
		return fmt.Errorf("%d bytes have to be copied, and %d are free: %w", total, free, unix.ENOSPC)
	}
	if err := to.Truncate(st.Size); err != nil {
		return err
	}
	var done int64
	for at := int64(0); ; {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		begin, err := from.Seek(at, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) { // nothing but a hole is left
			return nil
		}
		if err != nil {
			return err
		}
		end, err := from.Seek(begin, unix.SEEK_HOLE)
		if err != nil {
			return err
		}
		at = min(end, begin+copyStep)
		if _, err := from.Seek(begin, io.SeekStart); err != nil {
			return err
		}
		if _, err := to.Seek(begin, io.SeekStart); err != nil {
			return err
		}
		if n, err := io.CopyN(to, from, at-begin); err != nil {
			return fmt.Errorf("after %d of %d bytes: %w", done+n, total, err)
		}
		if done += at - begin; progress != nil {
			progress(done, total)
		}
	}
}
