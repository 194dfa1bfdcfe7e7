package agent

import (
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/boxd/boxd/agent/wire"
	"golang.org/x/sys/unix"
)

// ring holds the latest part of one output in memory that clients can read. For its layout
// see wire.RingHeader. One goroutine fills it.
type ring struct {
	fd     int // memfd, sealed in size
	mem    []byte
	size   uint64
	head   uint64
	floor  uint64
	record int // the record to be written next
	marks  marks
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
	r.publish()
	return r, nil
}

func (r *ring) prepare() error {
	length := wire.RingHeader + int64(r.size) + wire.RingMarksSize
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

// publish writes the bounds to the older record.
func (r *ring) publish() {
	const words = wire.RingRecord / 8
	header := (*[2 * words]uint64)(unsafe.Pointer(unsafe.SliceData(r.mem)))
	record := header[r.record*words:]
	atomic.StoreUint64(&record[0], r.floor)
	atomic.StoreUint64(&record[1], r.head)
	atomic.StoreUint64(&record[2], wire.RingCheck(r.floor, r.head))
	r.record = 1 - r.record
}

// space returns memory for up to n of the next bytes. From now on the bytes that it held
// before no longer count as kept.
func (r *ring) space(n uint64) []byte {
	at := r.head % r.size
	n = min(n, r.size-at)
	if end := r.head + n; end > r.size+r.floor {
		r.floor = end - r.size
		r.publish()
	}
	return r.mem[wire.RingHeader+at:][:n]
}

// advance publishes n bytes that were written to space, as arrived now.
func (r *ring) advance(n int, now time.Time) {
	r.marks.note(r.mem[wire.RingHeader+r.size:], r.head, r.floor, now)
	r.head += uint64(n)
	r.publish()
}

// unmap frees the memory when no more bytes will come. Clients can still read the ring.
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
