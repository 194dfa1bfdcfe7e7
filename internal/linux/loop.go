package linux

import (
	"errors"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Loop devices: loop(4), drivers/block/loop.c. Processes race to bind a free device;
// all calls but LoopFree and LoopBind are for a device that is already bound.

// LoopFree returns the number of a free loop device and creates one if necessary. control
// is /dev/loop-control. Another process may bind the device first.
func LoopFree(control *os.File) (int, error) {
	return ioctlInt(control, "LOOP_CTL_GET_FREE", unix.LOOP_CTL_GET_FREE, 0)
}

// LoopBind binds the device dev to file, with LO_FLAGS_* flags. Direct I/O is silently
// dropped if the file does not support it. EBUSY means that dev is already bound.
//
// Before Linux 5.8 this takes several calls; if a SIGKILL falls between them, the device
// remains without LO_FLAGS_AUTOCLEAR.
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
		// Like LOOP_CONFIGURE, ignore a failure: without direct I/O it is slower, not wrong.
		_, _ = ioctlInt(dev, "LOOP_SET_DIRECT_IO", unix.LOOP_SET_DIRECT_IO, 1)
	}
	return nil
}

// LoopStatus describes the file that dev is bound to: its Inode, and its Device as in
// fstat(2). ENXIO means that dev is not bound.
func LoopStatus(dev *os.File) (unix.LoopInfo64, error) {
	var info unix.LoopInfo64
	err := ioctl(dev, "LOOP_GET_STATUS64", unix.LOOP_GET_STATUS64, unsafe.Pointer(&info))
	return info, err
}

// LoopSetFlags sets the flags of dev that can be changed later: LO_FLAGS_AUTOCLEAR.
func LoopSetFlags(dev *os.File, flags uint32) error {
	info := unix.LoopInfo64{Flags: flags}
	for range 64 { // EAGAIN: the kernel had to drop pages of the device first
		err := ioctl(dev, "LOOP_SET_STATUS64", unix.LOOP_SET_STATUS64, unsafe.Pointer(&info))
		if !errors.Is(err, unix.EAGAIN) {
			return err
		}
	}
	return pathError("LOOP_SET_STATUS64", dev, "", unix.EAGAIN)
}

// LoopSetCapacity makes dev as large as its file currently is.
func LoopSetCapacity(dev *os.File) error {
	_, err := ioctlInt(dev, "LOOP_SET_CAPACITY", unix.LOOP_SET_CAPACITY, 0)
	return err
}

// Ext4Resize grows the mounted ext4 file system that contains dir to the given number of
// blocks.
func Ext4Resize(dir *os.File, blocks uint64) error {
	const request = 0x40086610 // EXT4_IOC_RESIZE_FS, _IOW('f', 16, __u64)
	return ioctl(dir, "EXT4_IOC_RESIZE_FS", request, unsafe.Pointer(&blocks))
}
