// Package sealed copies programs into sealed memory. Nobody can change such a copy, and neither can the process
// that executes it.
//
// It is linked into the part of boxd that has to start fast, so it imports little.
package sealed

import (
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// Copy returns a copy of a program in an immutable memfd of the given name. It reads src
// from its beginning, whatever its offset. The caller owns the copy.
func Copy(src *os.File, name string) (*os.File, error) {
	if b := begun.Swap(nil); b != nil {
		if f := b.take(src, name); f != nil {
			return f, nil
		}
	}
	return copyOf(src, name)
}

func copyOf(src *os.File, name string) (*os.File, error) {
	fd, err := Memfd(name)
	if err != nil {
		return nil, err
	}
	dst := os.NewFile(uintptr(fd), "memfd:"+name)
	if err := sendAll(dst, src); err != nil {
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

// begun is the copy that Begin has begun and no Copy has been asked for yet.
var begun atomic.Pointer[early]

// early is a copy that is made before it is asked for.
type early struct {
	name string
	done chan struct{} // closed when the other fields are set
	of   State         // before it was read
	file *os.File      // nil if there is no copy
}

// Begin begins to copy the program at path. The next Copy returns that copy if it is called with the same name and
// with that file, unchanged; otherwise the copy is thrown away. What fails now, Copy tries again.
func Begin(path, name string) {
	b := &early{name: name, done: make(chan struct{})}
	if !begun.CompareAndSwap(nil, b) {
		return
	}
	go func() {
		defer close(b.done)
		src, err := os.Open(path)
		if err != nil {
			return
		}
		defer src.Close()
		if b.of, err = StateOf(src); err == nil {
			b.file, _ = copyOf(src, name)
		}
	}()
}

// take returns the copy, or nil if it is not what a Copy of src would be.
func (b *early) take(src *os.File, name string) *os.File {
	<-b.done
	if b.file == nil {
		return nil
	}
	if now, err := StateOf(src); err != nil || now != b.of || name != b.name {
		b.file.Close()
		return nil
	}
	return b.file
}

// State tells a file from others, and from itself after it was changed. Times are in ns since 1970. It does not notice a
// change that keeps the size and follows the one before within a tick of the clock, which is 4 or 10 ms before Linux
// 6.13: only somebody who may write the file can make one.
type State struct{ Device, Inode, Size, Modified, Changed, Links int64 }

// StateOf returns the state of an open file.
func StateOf(f *os.File) (State, error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return State{}, &os.PathError{Op: "fstat", Path: f.Name(), Err: err}
	}
	return State{int64(st.Dev), int64(st.Ino), st.Size, st.Mtim.Nano(), st.Ctim.Nano(), int64(st.Nlink)}, nil
}

// sendAll copies a file within the kernel, which takes half as many copies and a hundredth of the system
// calls of reading and writing it.
func sendAll(dst, src *os.File) error {
	for offset := int64(0); ; {
		n, err := unix.Sendfile(int(dst.Fd()), int(src.Fd()), &offset, 1<<30)
		switch {
		case err == unix.EINTR:
		case err != nil:
			return os.NewSyscallError("sendfile", err)
		case n == 0:
			return nil
		}
	}
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

// Memfd creates an executable, sealable memfd; the caller closes it. Older kernels know neither MFD_EXEC nor memfds
// that are not executable (Linux 6.3).
func Memfd(name string) (int, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate(name, flags|unix.MFD_EXEC)
	if err == unix.EINVAL {
		fd, err = unix.MemfdCreate(name, flags)
	}
	return fd, os.NewSyscallError("memfd_create", err)
}

// Probe makes a memfd as Memfd does. Nil means that it works. An error that matches [errors.ErrUnsupported] means that
// this kernel refuses it: the sysctl vm.memfd_noexec=2 (Linux 6.3) forbids executable ones with EACCES.
func Probe() error {
	fd, err := Memfd("probe")
	if errors.Is(err, unix.EACCES) {
		return fmt.Errorf("executable memfd: %w: %w", errors.ErrUnsupported, err)
	}
	if err != nil {
		return err
	}
	return unix.Close(fd)
}
