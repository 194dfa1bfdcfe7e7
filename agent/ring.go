package agent

import (
	"os"
	"sync/atomic"
	"unsafe"

	"github.com/boxd/boxd/agent/wire"
	"golang.org/x/sys/unix"
)

// ring is the last part of one output in memory that clients can read: see
// wire.RingHeader for its layout. One goroutine fills it.
type ring struct {
	fd   int // memfd, sealed in size
	mem  []byte
	size uint64
	head uint64
}

func newRing(size uint64) (*ring, error) {
	const flags = unix.MFD_CLOEXEC | unix.MFD_ALLOW_SEALING
	fd, err := unix.MemfdCreate("output", flags|unix.MFD_NOEXEC_SEAL)
	if err == unix.EINVAL { // before Linux 6.3
		fd, err = unix.MemfdCreate("output", flags)
	}
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	r := &ring{fd: fd, size: size}
	if err := r.prepare(); err != nil {
		unix.Close(fd)
		return nil, err
	}
	r.publish(0, 0)
	r.publish(2, 0)
	return r, nil
}

func (r *ring) prepare() error {
	length := wire.RingHeader + int64(r.size)
	if err := unix.Ftruncate(r.fd, length); err != nil {
		return os.NewSyscallError("ftruncate", err)
	}
	const seals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	if _, err := unix.FcntlInt(uintptr(r.fd), unix.F_ADD_SEALS, seals); err != nil {
		return os.NewSyscallError("fcntl(F_ADD_SEALS)", err)
	}
	mem, err := unix.Mmap(r.fd, 0, int(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return os.NewSyscallError("mmap", err)
	}
	r.mem = mem
	return nil
}

// publish stores a word of the header and, behind it, its complement.
func (r *ring) publish(word int, v uint64) {
	words := (*[wire.RingHeaderWords / 8]uint64)(unsafe.Pointer(unsafe.SliceData(r.mem)))
	atomic.StoreUint64(&words[word], v)
	atomic.StoreUint64(&words[word+1], ^v)
}

// space returns memory for up to n of the next bytes. What was there before is
// not whole any more from now on.
func (r *ring) space(n uint64) []byte {
	at := r.head % r.size
	n = min(n, r.size-at)
	if end := r.head + n; end > r.size {
		r.publish(0, end-r.size)
	}
	return r.mem[wire.RingHeader+at:][:n]
}

// advance says that n bytes of space are filled.
func (r *ring) advance(n int) {
	r.head += uint64(n)
	r.publish(2, r.head)
}

// unmap ends the filling. Clients can still read.
func (r *ring) unmap() {
	if r.mem != nil {
		_ = unix.Munmap(r.mem)
		r.mem = nil
	}
}

func (r *ring) close() {
	r.unmap()
	unix.Close(r.fd)
}
