package linux

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// SealedCopy returns a copy of the binary at path, boxd-init, in an immutable memfd. The
// caller owns it.
func SealedCopy(path string) (*os.File, error) {
	src, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening boxd-init: %w", err)
	}
	defer src.Close()
	fd, err := execMemfd("boxd-init")
	if err != nil {
		return nil, err
	}
	dst := os.NewFile(uintptr(fd), "memfd:boxd-init")
	if _, err := io.Copy(dst, src); err != nil {
		dst.Close()
		return nil, fmt.Errorf("copying boxd-init to memory: %w", err)
	}
	const seals = unix.F_SEAL_SEAL | unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_WRITE
	if err := errors.Join(dst.Chmod(0o511), seal(dst, seals)); err != nil {
		dst.Close()
		return nil, err
	}
	return dst, nil
}

// sealPatience bounds how long seal retries.
const sealPatience = 5 * time.Second

// seal seals f. It retries while the kernel still holds pages of it, for example for a
// splice: until they are released, F_SEAL_WRITE fails with EBUSY (memfd_wait_for_pins in
// mm/memfd.c gives up after 150 ms).
func seal(f *os.File, seals int) error {
	for end := time.Now().Add(sealPatience); ; time.Sleep(5 * time.Millisecond) {
		_, err := unix.FcntlInt(f.Fd(), unix.F_ADD_SEALS, seals)
		if err == nil || err != unix.EBUSY || time.Now().After(end) {
			return os.NewSyscallError("fcntl(F_ADD_SEALS)", err)
		}
	}
}

// execMemfd creates an executable, sealable memfd. Older kernels know neither MFD_EXEC nor memfds
// that are not executable (Linux 6.3).
func execMemfd(name string) (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_EXEC)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate(name, flags)
	}
	return fd, os.NewSyscallError("memfd_create", err)
}
