package egress

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// parkAfter is how long a tunnel moves no byte before its directions are parked.
const parkAfter = 100 * time.Millisecond

// parkRetry is how long a direction that cannot be parked waits until it tries again.
const parkRetry = 10 * time.Second

// errParked: the direction was parked, and somebody else may run it already.
var errParked = errors.New("parked")

// direction is one of the two of a tunnel.
type direction struct {
	f        *flow
	dst, src *net.TCPConn
	total    *atomic.Int64 // of f
	early    []byte        // is sent first
	finish   func(dst *net.TCPConn, err error)
}

// run moves bytes until the direction ends or is parked.
func (d *direction) run() {
	err := d.f.send(d.f.p.ctx, d.dst, d.early, d.total)
	d.early = nil
	if err == nil {
		err = d.f.copy(d)
	}
	if err != errParked {
		d.finish(d.dst, err)
	}
}

// parking has the directions of all tunnels of the process that wait for bytes. A waiting goroutine takes 2.5 KB, which is
// half of an idle tunnel; here one goroutine waits for all, as long as there are any.
var parking struct {
	mu      sync.Mutex
	epoll   *os.File           // nil while waiting is empty
	fd      int                // of epoll
	waiting map[uint64]*parked // by the number in the event of epoll
	last    uint64
}

// parked is a direction that waits for bytes of its source or for the end of its patience.
type parked struct {
	*direction
	idle *time.Timer
	// still: the kernel has sent all that was written to dst, so nothing moves there before the direction is
	// resumed.
	still bool
}

// resume runs the direction again.
func (p *parked) resume() {
	p.idle.Stop()
	if err := p.f.extend(p.src.SetReadDeadline, parkAfter, os.ErrDeadlineExceeded); err != nil { // the deadline has passed
		p.finish(p.dst, err)
		return
	}
	p.run()
}

// park has another goroutine resume d when its source has bytes or has ended, and at the latest when its flow was idle
// for too long. After an error d is not parked.
func park(d *direction) error {
	raw, err := d.src.SyscallConn()
	if err != nil {
		return err
	}
	parking.mu.Lock()
	defer parking.mu.Unlock()
	if parking.epoll == nil {
		fd, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
		if err != nil {
			return os.NewSyscallError("epoll_create1", err)
		}
		if err := unix.SetNonblock(fd, true); err != nil { // otherwise its reader would hold a thread
			unix.Close(fd)
			return os.NewSyscallError("fcntl", err)
		}
		parking.epoll, parking.fd, parking.waiting = os.NewFile(uintptr(fd), "epoll"), fd, map[uint64]*parked{}
		go watch(parking.epoll)
	}
	parking.last++
	number := parking.last
	event := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLRDHUP | unix.EPOLLONESHOT, Fd: int32(number), Pad: int32(number >> 32)}
	var failed error
	err = raw.Control(func(fd uintptr) {
		if failed = unix.EpollCtl(parking.fd, unix.EPOLL_CTL_ADD, int(fd), &event); failed == unix.EEXIST {
			failed = unix.EpollCtl(parking.fd, unix.EPOLL_CTL_MOD, int(fd), &event)
		}
	})
	if err == nil {
		err = os.NewSyscallError("epoll_ctl", failed)
	}
	if err != nil {
		leaveLocked()
		return err
	}
	left, _ := d.f.patience() // with mu held: either this sees the rules of a SetRules, or it finds d in waiting
	parking.waiting[number] = &parked{direction: d, still: unsent(d.dst) == 0, idle: time.AfterFunc(left, func() {
		if p := take(number); p != nil {
			p.resume()
		}
	})}
	return nil
}

// take returns the direction with that number, which the caller resumes, or nil if it is not parked any more.
func take(number uint64) *parked {
	parking.mu.Lock()
	defer parking.mu.Unlock()
	p := parking.waiting[number]
	if p != nil {
		delete(parking.waiting, number)
		leaveLocked()
	}
	return p
}

// takeParked returns the parked directions that fit. The caller resumes them, and calls leave.
func takeParked(fits func(*parked) bool) (taken []*parked) {
	parking.mu.Lock()
	defer parking.mu.Unlock()
	for number, d := range parking.waiting {
		if fits(d) {
			taken = append(taken, d)
			delete(parking.waiting, number)
		}
	}
	return taken
}

// leave ends the goroutine that waits if it waits for nothing. Then the kernel takes every socket from its list, which
// Shut has no time for.
func leave() {
	parking.mu.Lock()
	defer parking.mu.Unlock()
	leaveLocked()
}

func leaveLocked() {
	if len(parking.waiting) == 0 && parking.epoll != nil {
		parking.epoll.Close()
		parking.epoll = nil
	}
}

// watch resumes directions until epoll is closed.
func watch(epoll *os.File) {
	raw, err := epoll.SyscallConn()
	var events [128]unix.EpollEvent
	for err == nil {
		n := 0
		err = raw.Read(func(fd uintptr) bool {
			n, _ = ignoringEINTR(func() (int, error) { return unix.EpollWait(int(fd), events[:], 0) })
			return n != 0
		})
		for _, e := range events[:max(n, 0)] {
			number := uint64(uint32(e.Fd)) | uint64(uint32(e.Pad))<<32
			if p := take(number); p != nil {
				go p.resume()
			}
		}
	}
}
