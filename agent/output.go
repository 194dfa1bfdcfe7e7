package agent

import (
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

const (
	// maxPipe is the size of an output's pipe in bytes, if the kernel allows it. A larger
	// pipe means fewer switches between the process and the agent. The pipes of all
	// processes of a box must stay below pipe-user-pages-soft (pipe(7)).
	maxPipe = 256 << 10
	// maxRead is the most bytes that one read takes.
	maxRead = 256 << 10
)

// output carries one stream of a managed process into its ring. One goroutine,
// pump, fills the ring.
type output struct {
	number uint32 // of the process
	stream uint32
	tty    bool
	drop   bool
	ring   *ring
	src    *os.File
	raw    syscall.RawConn
	done   chan struct{} // closed when pump has ended

	// Only pump uses these: the room for one read, and its result.
	room uint64
	n    int
	err  error

	mu       sync.Mutex
	roomier  sync.Cond
	head     uint64
	released uint64
	// reserve bytes are kept free in a ring that may not be overwritten, for the content of
	// the pipe when the process ends, so that the end never waits for a reader.
	reserve uint64
	cutting bool
	ended   bool
	watcher *client // waits for bytes after watched
	watched uint64
}

// newOutput takes ownership of src, which is in non-blocking mode. capacity is how many bytes
// the kernel can hold in it.
func newOutput(stream uint32, m *wire.LaunchMsg, src *os.File, capacity uint64) (*output, error) {
	o := &output{stream: stream, tty: m.Spawn.TTY, drop: m.Drops(stream), src: src, done: make(chan struct{})}
	o.roomier.L = &o.mu
	o.reserve = min(capacity, m.RingOf(stream)/2)
	var err error
	if o.raw, err = src.SyscallConn(); err != nil {
		return nil, err
	}
	o.ring, err = newRing(m.RingOf(stream))
	return o, err
}

// pump reads until the end of the stream.
func (o *output) pump() {
	defer close(o.done)
	for {
		room, cut := o.waitRoom()
		if cut {
			break
		}
		o.room = room
		if err := o.raw.Read(o.read); err != nil { // the deadline of cut
			break
		}
		if o.n <= 0 {
			o.end()
			return
		}
		o.filled()
	}
	o.takeRest()
	o.end()
}

// read fills the next part of the ring; false means that there is nothing to read yet. It
// first asks how much there is, because it makes that much of the ring unreadable. If there
// is no memory for the ring (EFAULT), the stream ends and the process gets SIGPIPE; package
// cgroups leaves room for all rings.
func (o *output) read(fd uintptr) bool {
	there, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ) // also called FIONREAD
	if err != nil || there < 1 {
		there = 1
	}
	if o.tty {
		there = max(there, 1024) // a terminal may hold more than it reports
	}
	b := o.ring.space(min(uint64(there), o.room, maxRead))
	for {
		if o.n, o.err = unix.Read(int(fd), b); o.err != unix.EINTR {
			return o.err != unix.EAGAIN
		}
	}
}

// filled makes the bytes that were read visible.
func (o *output) filled() {
	o.mu.Lock()
	o.ring.advance(o.n, time.Now())
	o.head = o.ring.head
	o.mu.Unlock()
	o.notify()
}

// waitRoom waits until the ring has room, or the stream is cut.
func (o *output) waitRoom() (room uint64, cut bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for !o.cutting {
		if room := o.roomLocked(o.reserve); room > 0 {
			return room, false
		}
		o.roomier.Wait()
	}
	return 0, true
}

// waitRoomForRest is waitRoom after the cut.
func (o *output) waitRoomForRest() uint64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.roomLocked(0) == 0 {
		o.roomier.Wait()
	}
	return o.roomLocked(0)
}

func (o *output) roomLocked(reserve uint64) uint64 {
	limit := o.released + o.ring.size - reserve
	if o.drop {
		return o.ring.size
	}
	return max(limit, o.head) - o.head
}

// cut ends the stream after the bytes that have been written by now.
func (o *output) cut() {
	o.mu.Lock()
	o.cutting = true
	o.mu.Unlock()
	o.roomier.Broadcast()
	_ = o.src.SetReadDeadline(past)
}

// force overwrites unreleased output instead of waiting longer for room. After its end, a
// stream needs that only if the process has enlarged its pipe (F_SETPIPE_SZ) beyond the
// reserve.
func (o *output) force() {
	o.mu.Lock()
	o.drop = true
	o.mu.Unlock()
	o.roomier.Broadcast()
}

// hungUp reports whether a pipe has no writer left.
func (o *output) hungUp() bool {
	poll := []unix.PollFd{{Events: unix.POLLIN}}
	err := o.raw.Control(func(fd uintptr) {
		poll[0].Fd = int32(fd)
		_, _ = unix.Poll(poll, 0)
	})
	return err == nil && !o.tty && poll[0].Revents&unix.POLLHUP != 0
}

// takeRest reads the bytes that there are at this moment. A terminal reports fewer than it
// has.
func (o *output) takeRest() {
	left := 0
	err := o.raw.Control(func(fd uintptr) { left, _ = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
	if o.tty {
		left = linux.TTYBuffer
	}
	for err == nil && left > 0 {
		o.room = min(o.waitRoomForRest(), uint64(left))
		ready := false
		err = o.raw.Control(func(fd uintptr) { ready = o.read(fd) })
		if !ready || o.n <= 0 {
			return
		}
		left -= o.n
		o.filled()
	}
}

func (o *output) end() {
	o.mu.Lock()
	o.ended = true
	o.mu.Unlock()
	o.ring.unmap()
	o.notify()
}

// watch notifies c once there is something after offset. c replaces the previous watcher,
// unless that is a later client.
func (o *output) watch(c *client, offset uint64) {
	o.mu.Lock()
	if c.orLater(o.watcher) == c {
		o.watcher, o.watched = c, offset
	}
	o.mu.Unlock()
	o.notify()
}

func (o *output) notify() {
	o.mu.Lock()
	c := o.watcher
	if c == nil || o.head <= o.watched && !o.ended {
		o.mu.Unlock()
		return
	}
	o.watcher = nil
	m := wire.HeadMsg{Stream: o.stream, Head: o.head, Ended: o.ended}
	o.mu.Unlock()
	c.send(wire.TypeHead, o.number, m.Marshal())
}

// release allows the bytes below offset to be overwritten.
func (o *output) release(offset uint64) {
	o.mu.Lock()
	o.released = max(o.released, min(offset, o.head))
	o.mu.Unlock()
	o.roomier.Broadcast()
}

// state returns how far the stream was filled and released.
func (o *output) state() (head, released uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.head, o.released
}
