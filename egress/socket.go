package egress

import (
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Bounds of the kernel's queues for one connection, in bytes; the kernel takes twice as much
// memory (socket(7)). A transfer to a server that is 50 ms away moves at most 10 MB/s in and
// 5 MB/s out.
const (
	receiveBuffer = 512 << 10 // from the network
	sendBuffer    = 256 << 10 // to the network, and both ways between box and proxy
)

// boundBuffers bounds the queues of a socket to the network, before it is connected.
func boundBuffers(raw syscall.RawConn) error {
	var err error
	cerr := raw.Control(func(fd uintptr) {
		if err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, receiveBuffer); err == nil {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_SNDBUF, sendBuffer)
		}
	})
	if cerr != nil {
		return cerr
	}
	return err
}

// reset ends c at once: the peer gets a RST, and the kernel drops what it has not sent and
// what nobody has read (tcp_disconnect in net/ipv4/tcp.c). It does not wait for goroutines
// that use c: their calls fail. The owner of c still closes it.
func reset(c *net.TCPConn) {
	raw, err := c.SyscallConn()
	if err != nil {
		return
	}
	var errno syscall.Errno
	err = raw.Control(func(fd uintptr) {
		unspecified := syscall.RawSockaddr{Family: syscall.AF_UNSPEC}
		// It does not block. Syscall would let the goroutines run that each reset wakes.
		_, _, errno = syscall.RawSyscall(syscall.SYS_CONNECT, fd, uintptr(unsafe.Pointer(&unspecified)), unsafe.Sizeof(unspecified))
	})
	if err != nil || errno != 0 {
		c.SetLinger(0)
		c.Close()
		for _, d := range takeParked(func(d *parked) bool { return d.src == c }) {
			go d.resume() // close(2) is no event of epoll
		}
		leave()
	}
}

// resetAll resets connections on all processors. A reset takes 9 µs, in which the kernel tells the peer.
func resetAll(conns []*net.TCPConn) {
	const share = 16 // of a processor at a time: on a busy host, one has done much when another comes to its turn
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(conns)/share+1) {
		wg.Go(func() {
			for {
				end := int(next.Add(share))
				if end-share >= len(conns) {
					return
				}
				for _, c := range conns[end-share : min(end, len(conns))] {
					reset(c)
				}
			}
		})
	}
	wg.Wait()
}

// unsent returns a number that falls while the kernel sends what is queued on c, and 0 when
// the peer has confirmed all of it or the connection is gone.
func unsent(c *net.TCPConn) (left uint64) {
	raw, err := c.SyscallConn()
	if err != nil {
		return 0
	}
	_ = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if err == nil && info.State != unix.BPF_TCP_CLOSE {
			left = uint64(info.Notsent_bytes) + uint64(info.Unacked)
		}
	})
	return left
}

// drainTime is how long the peer of a connection that has ended may accept nothing of what is
// queued for it.
const drainTime = 10 * time.Second

// drain returns when the kernel has sent what is queued on c, or c was reset because its peer
// does not take it. Without it, close(2) would leave the socket and its queue to the kernel:
// nothing would count it any more, and Shut could not end it.
func (p *Proxy) drain(c *net.TCPConn) {
	left, since := unsent(c), time.Now()
	for pause := time.Millisecond; left > 0; pause = min(2*pause, 100*time.Millisecond) {
		select {
		case <-time.After(pause):
		case <-p.ctx.Done(): // Shut resets c
			return
		}
		if now := unsent(c); now < left {
			left, since = now, time.Now()
		} else if time.Since(since) > p.patience {
			reset(c)
			return
		}
	}
}
