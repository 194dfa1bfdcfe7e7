package linux

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// SealedCopy returns a copy of a program in an immutable memfd of the given name. It reads src
// from its beginning, whatever its offset. The caller owns the copy.
func SealedCopy(src *os.File, name string) (*os.File, error) {
	fd, err := execMemfd(name)
	if err != nil {
		return nil, err
	}
	dst := os.NewFile(uintptr(fd), "memfd:"+name)
	if _, err := io.Copy(dst, io.NewSectionReader(src, 0, math.MaxInt64)); err != nil {
		dst.Close()
		return nil, fmt.Errorf("copying %s to memory: %w", name, err)
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
