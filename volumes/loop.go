package volumes

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// errNoDevice means that loop devices cannot be used.
var errNoDevice = errors.New("no loop device")

func openControl() (*os.File, error) {
	f, err := linux.Openat2(nil, "/dev/loop-control", unix.OpenHow{Flags: unix.O_RDWR})
	if err != nil {
		return nil, fmt.Errorf(`%w: %w: run "modprobe loop", and allow the device`, errNoDevice, err)
	}
	return f, nil
}

// bindLoop binds a free device to image. No other device may be bound to it: two devices would
// destroy its content. The device stays bound while the caller has it open or it is mounted.
func bindLoop(image *os.File) (*os.File, error) {
	control, err := openControl()
	if err != nil {
		return nil, err
	}
	defer control.Close()
	for try := range 200 {
		dev, err := tryBind(control, image)
		// EBUSY: another process was faster. ENXIO, ENOENT: the device is disappearing, or
		// its node does not exist yet.
		if err == nil || !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.ENXIO) && !errors.Is(err, unix.ENOENT) || try == 199 {
			return dev, err
		}
		time.Sleep(time.Duration(rand.IntN(1+min(try, 20))) * time.Millisecond)
	}
	panic("unreachable")
}

func tryBind(control, image *os.File) (*os.File, error) {
	n, err := linux.LoopFree(control)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNoDevice, err)
	}
	dev, err := linux.Openat2(nil, "/dev/loop"+strconv.Itoa(n), unix.OpenHow{Flags: unix.O_RDWR})
	if err != nil {
		// A container may have a static /dev without the node.
		if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.ENOENT) {
			err = fmt.Errorf("%w: %w", errNoDevice, err)
		}
		return nil, err
	}
	if err := linux.LoopBind(dev, image, unix.LO_FLAGS_AUTOCLEAR|unix.LO_FLAGS_DIRECT_IO); err != nil {
		dev.Close()
		return nil, err
	}
	return dev, nil
}

// findLoop returns the loop device that is bound to image, or nil.
func findLoop(image *os.File) (*os.File, error) {
	st, err := linux.Fstat(image)
	if err != nil {
		return nil, err
	}
	var found *os.File
	err = eachLoop(func(dev string, file string) (bool, error) {
		// The name must match: an image has one name, and is not renamed while it is bound.
		if path.Base(file) != path.Base(image.Name()) {
			return true, nil
		}
		f, err := linux.Openat2(nil, dev, unix.OpenHow{Flags: unix.O_RDWR})
		if errors.Is(err, unix.ENXIO) || errors.Is(err, unix.ENOENT) {
			return true, nil
		}
		if err != nil {
			return false, err
		}
		info, err := linux.LoopStatus(f)
		if err == nil && info.Device == st.Dev && info.Inode == st.Ino {
			found = f
			if info.Flags&unix.LO_FLAGS_READ_ONLY != 0 || info.Offset != 0 || info.Sizelimit != 0 {
				err = fmt.Errorf("loop device %s is bound to a part of it, or read-only, by somebody else", dev)
			}
			return false, err
		}
		f.Close()
		if errors.Is(err, unix.ENXIO) {
			err = nil
		}
		return err == nil, err
	})
	if err != nil && found != nil {
		found.Close()
		found = nil
	}
	return found, err
}

// eachLoop calls fn with the node of each bound device and the current path of its file, as
// far as this process can see it.
func eachLoop(fn func(dev, file string) (more bool, err error)) error {
	block, err := linux.Openat2(nil, "/sys/block", unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY})
	if err != nil {
		return err
	}
	defer block.Close()
	names, err := block.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, "loop") {
			continue
		}
		file, err := linux.ReadFileAt(block, name+"/loop/backing_file")
		if err != nil {
			continue // not bound
		}
		more, err := fn("/dev/"+name, strings.TrimSuffix(file, "\n"))
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// detachLeftovers frees devices of a process that was killed before it could set autoclear.
// Devices that are mounted stay until they are unmounted.
func (s *Store) detachLeftovers() error {
	return eachLoop(func(dev, file string) (bool, error) {
		name, ok := strings.CutSuffix(path.Base(file), imageSuffix)
		if !ok || checkName(name) != nil {
			return true, nil
		}
		st, err := linux.StatAt(s.dir, name+imageSuffix)
		if err != nil {
			return true, nil
		}
		f, err := linux.Openat2(nil, dev, unix.OpenHow{Flags: unix.O_RDWR})
		if err != nil {
			return true, nil
		}
		defer f.Close()
		info, err := linux.LoopStatus(f)
		if err != nil || info.Device != st.Dev || info.Inode != st.Ino || info.Flags&unix.LO_FLAGS_AUTOCLEAR != 0 {
			return true, nil
		}
		return true, linux.LoopSetFlags(f, info.Flags|unix.LO_FLAGS_AUTOCLEAR)
	})
}
