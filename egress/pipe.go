package egress

import (
	"errors"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// maxPipes is how many streams of the process go through a pipe at once, whatever boxes
	// that do not read do; others go through buffers.
	maxPipes = 32
	// pipeSize is the wanted size of a pipe in bytes. The kernel grants less to a user with
	// many pipes (pipe-user-pages-soft, pipe(7)).
	pipeSize = 512 << 10
)

// pipe carries bytes from one socket to another without a copy into this process.
type pipe struct {
	r, w int
	left int // bytes in it
}

var (
	pipeSlots = make(chan struct{}, maxPipes)
	idlePipes = make(chan *pipe, maxPipes)
)

// takePipe returns an empty pipe, nil if there is none to be had. The caller releases it.
func takePipe() *pipe {
	select {
	case pipeSlots <- struct{}{}:
	default:
		return nil
	}
	select {
	case p := <-idlePipes:
		return p
	default:
	}
	var fds [2]int
	if err := syscall.Pipe2(fds[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		<-pipeSlots
		return nil
	}
	_, _ = unix.FcntlInt(uintptr(fds[1]), unix.F_SETPIPE_SZ, pipeSize)
	return &pipe{r: fds[0], w: fds[1]}
}

// release gives an empty pipe to others, and closes one that still has bytes.
func (p *pipe) release() {
	defer func() { <-pipeSlots }()
	if p.left == 0 {
		select {
		case idlePipes <- p:
			return
		default:
		}
	}
	p.close()
}

func closeIdlePipes() {
	for {
		select {
		case p := <-idlePipes:
			p.close()
		default:
			return
		}
	}
}

func (p *pipe) close() {
	syscall.Close(p.r)
	syscall.Close(p.w)
}

// fill moves what a socket has received into the pipe, as much as fits. The result is 0 at
// the end of the stream.
func (p *pipe) fill(socket int) (int, error) {
	n, err := splice(socket, p.w, pipeSize)
	p.left += n
	return n, err
}

// drain moves up to n bytes out of the pipe into the queue of a socket.
func (p *pipe) drain(socket, n int) (int, error) {
	n, err := splice(p.r, socket, n)
	p.left -= n
	return n, err
}

func splice(from, to, n int) (int, error) {
	return ignoringEINTR(func() (int, error) {
		moved, err := syscall.Splice(from, nil, to, nil, n, unix.SPLICE_F_MOVE|unix.SPLICE_F_NONBLOCK)
		return int(max(moved, 0)), err
	})
}

func ignoringEINTR(call func() (int, error)) (int, error) {
	for {
		if n, err := call(); !errors.Is(err, syscall.EINTR) {
			return n, err
		}
	}
}
