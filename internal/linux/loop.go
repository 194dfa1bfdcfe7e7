package linux

import (
	"errors"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Loop devices: loop(4), drivers/block/loop.c. A device is bound to a file by
// whoever wins it; everything else here is about a device that is bound.

// LoopFree returns the number of a loop device that is bound to nothing, making one
// if need be. control is /dev/loop-control. Another process may win the device first.
func LoopFree(control *os.File) (int, error) {
	return ioctlInt(control, "LOOP_CTL_GET_FREE", unix.LOOP_CTL_GET_FREE, 0)
}

// LoopBind binds the device dev to file, with LO_FLAGS_* flags, of which direct I/O
// is dropped silently where the file cannot do it. EBUSY if dev is bound already.
//
// Before Linux 5.8 that takes several calls, between which a device may lose
// its LO_FLAGS_AUTOCLEAR to a SIGKILL.
func LoopBind(dev, file *os.File, flags uint32) error {
	config := unix.LoopConfig{Fd: uint32(file.Fd()), Info: unix.LoopInfo64{Flags: flags}}
	err := ioctl(dev, "LOOP_CONFIGURE", unix.LOOP_CONFIGURE, unsafe.Pointer(&config))
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTTY) {
		err = loopBindSteps(dev, file, flags)
	}
	runtime.KeepAlive(file)
	return err
}

// loopBindSteps is LoopBind without LOOP_CONFIGURE.
func loopBindSteps(dev, file *os.File, flags uint32) error {
	if _, err := ioctlInt(dev, "LOOP_SET_FD", unix.LOOP_SET_FD, file.Fd()); err != nil {
		return err
	}
	err := LoopSetFlags(dev, flags&unix.LO_FLAGS_AUTOCLEAR)
	if err != nil {
		_, clearing := ioctlInt(dev, "LOOP_CLR_FD", unix.LOOP_CLR_FD, 0)
		return errors.Join(err, clearing)
	}
	if flags&unix.LO_FLAGS_DIRECT_IO != 0 {
		// As LOOP_CONFIGURE does: slower without, not wrong.
		_, _ = ioctlInt(dev, "LOOP_SET_DIRECT_IO", unix.LOOP_SET_DIRECT_IO, 1)
	}
	return nil
}

// LoopStatus says what dev is bound to; ENXIO if to nothing. Device and Inode of
// the result are those of the file, the first as fstat(2) has it (MakeDev).
func LoopStatus(dev *os.File) (unix.LoopInfo64, error) {
	var info unix.LoopInfo64
	err := ioctl(dev, "LOOP_GET_STATUS64", unix.LOOP_GET_STATUS64, unsafe.Pointer(&info))
	return info, err
}

// LoopSetFlags gives dev those of the LO_FLAGS_* that can be changed later:
// LO_FLAGS_AUTOCLEAR.
func LoopSetFlags(dev *os.File, flags uint32) error {
	info := unix.LoopInfo64{Flags: flags}
	for range 64 { // EAGAIN: pages of the device had to be dropped first
		err := ioctl(dev, "LOOP_SET_STATUS64", unix.LOOP_SET_STATUS64, unsafe.Pointer(&info))
		if !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
	return pathError("LOOP_SET_STATUS64", dev, "", unix.EAGAIN)
}

// LoopSetCapacity makes dev as large as its file is now.
func LoopSetCapacity(dev *os.File) error {
	_, err := ioctlInt(dev, "LOOP_SET_CAPACITY", unix.LOOP_SET_CAPACITY, 0)
	return err
}

// Ext4Resize grows the mounted ext4 that dir is a directory of to so many of its
// blocks.
func Ext4Resize(dir *os.File, blocks uint64) error {
	const request = 0x40086610 // EXT4_IOC_RESIZE_FS, _IOW('f', 16, __u64)
	return ioctl(dir, "EXT4_IOC_RESIZE_FS", request, unsafe.Pointer(&blocks))
}
