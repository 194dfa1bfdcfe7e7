package agent

import (
	"errors"
	"os"
	"syscall"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// past is a deadline that has expired.
var past = time.Unix(1, 0)

// managed is a managed process. It is in the table from before its start until it is
// forgotten.
type managed struct {
	number uint32
	key    string
	// The sizes of the rings, as in wire.LaunchMsg.
	ring, stderrRing uint64
	drop             bool
	tty              *os.File // the terminal's master
	in               *input
	outputs          []*output
	exited           chan unix.WaitStatus // one value

	// Under the table's lock.
	pid    int // 0 before its start
	began  time.Time
	ended  bool
	wall   time.Duration
	status unix.WaitStatus
}

// newManaged makes the stdio of a process. child are the process's ends, which the caller
// closes. pty is the master and slave of its terminal, if it has one; the caller keeps them.
func newManaged(m *wire.LaunchMsg, pty []int) (p *managed, child [3]int, err error) {
	p = &managed{key: m.Key, ring: m.Ring, stderrRing: m.StderrRing, drop: m.DropOldest, exited: make(chan unix.WaitStatus, 1)}
	child = [3]int{-1, -1, -1}
	if m.Spawn.TTY {
		err = p.openTerminal(m, pty, &child)
	} else {
		err = p.openPipes(m, &child)
	}
	if err != nil {
		closeFDs(child[:])
		p.close()
		return nil, child, err
	}
	return p, child, nil
}

func (p *managed) openTerminal(m *wire.LaunchMsg, pty []int, child *[3]int) error {
	master, err := unix.FcntlInt(uintptr(pty[0]), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.SetNonblock(master, true); err != nil {
		unix.Close(master)
		return err
	}
	p.tty = os.NewFile(uintptr(master), "terminal")
	for i := range child {
		if child[i], err = unix.FcntlInt(uintptr(pty[1]), unix.F_DUPFD_CLOEXEC, 0); err != nil {
			return err
		}
	}
	if p.in, err = newInput(p.tty, true); err != nil {
		return err
	}
	return p.addOutput(m, p.tty, linux.TTYBuffer)
}

func (p *managed) openPipes(m *wire.LaunchMsg, child *[3]int) error {
	read, write, err := pipe()
	if err != nil {
		return err
	}
	child[0] = read
	file, err := nonblocking(write)
	if err != nil {
		return err
	}
	if p.in, err = newInput(file, false); err != nil {
		return err
	}
	for i := range 2 {
		read, write, err := pipe()
		if err != nil {
			return err
		}
		child[1+i] = write
		capacity := resize(read, min(maxPipe, int(m.RingOf(uint32(i))/2)))
		src, err := nonblocking(read)
		if err != nil {
			return err
		}
		if err := p.addOutput(m, src, capacity); err != nil {
			return err
		}
	}
	return nil
}

// pipe makes a pipe that belongs to PID 1's user. Its mode lets every process that holds it
// open it through /dev/stdin, /dev/stdout and /dev/stderr.
func pipe() (read, write int, err error) {
	var fds [2]int
	if err := unix.Pipe2(fds[:], unix.O_CLOEXEC); err != nil {
		return -1, -1, err
	}
	if err := unix.Fchmod(fds[0], 0o666); err != nil {
		closeFDs(fds[:])
		return -1, -1, err
	}
	return fds[0], fds[1], nil
}

// nonblocking takes ownership of fd.
func nonblocking(fd int) (*os.File, error) {
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), "pipe"), nil
}

// resize makes a pipe as large as the kernel allows, at most size, and returns its
// size.
func resize(fd, size int) uint64 {
	for ; size >= os.Getpagesize(); size /= 2 {
		if n, err := unix.FcntlInt(uintptr(fd), unix.F_SETPIPE_SZ, size); err == nil {
			return uint64(n)
		}
	}
	if n, err := unix.FcntlInt(uintptr(fd), unix.F_GETPIPE_SZ, 0); err == nil {
		return uint64(n)
	}
	return uint64(os.Getpagesize())
}

func closeFDs(fds []int) {
	for _, fd := range fds {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}

func (p *managed) addOutput(m *wire.LaunchMsg, src *os.File, capacity uint64) error {
	o, err := newOutput(uint32(len(p.outputs)), m, src, capacity)
	if err != nil {
		if !m.Spawn.TTY {
			src.Close()
		}
		return err
	}
	p.outputs = append(p.outputs, o)
	return nil
}

// run carries the process's output until its end.
func (p *managed) run(t *table) {
	for _, o := range p.outputs {
		go o.pump()
	}
	status := <-p.exited
	wall := time.Since(p.began)
	for _, o := range p.outputs {
		if o.hungUp() {
			o.cut()
		}
	}
	cut := time.AfterFunc(wire.EndDelay, func() {
		for _, o := range p.outputs {
			o.cut()
		}
	})
	force := time.AfterFunc(2*wire.EndDelay, func() {
		for _, o := range p.outputs {
			o.force()
		}
	})
	for _, o := range p.outputs {
		<-o.done
	}
	cut.Stop()
	force.Stop()
	p.closeStdio()
	if p.in != nil {
		// The goroutine that wrote the last input may not have told the client yet. The client must hear of
		// accepted bytes before it hears that the process has ended.
		p.in.tell()
	}
	t.ended(p, status, wall)
}

// closeStdio closes our ends: a process that still writes to one gets SIGPIPE.
func (p *managed) closeStdio() {
	if p.in != nil {
		p.in.abandon()
	}
	for _, o := range p.outputs {
		o.src.Close()
	}
	if p.tty != nil {
		p.tty.Close()
	}
}

// close frees everything. No goroutine of the process runs any more.
func (p *managed) close() {
	p.closeStdio()
	for _, o := range p.outputs {
		o.ring.close()
	}
}

func (p *managed) resize(rows, cols uint16) {
	if p.tty == nil {
		return
	}
	raw, err := p.tty.SyscallConn()
	if err == nil {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: rows, Col: cols})
		})
	}
}

// describeLocked describes the current state of the process, with the descriptors of its
// rings.
func (p *managed) describeLocked() (wire.ManagedMsg, []int) {
	m := wire.ManagedMsg{
		Number: p.number, Key: p.key, PID: uint32(p.pid),
		TTY: p.tty != nil, DropOldest: p.drop, Ring: p.ring, StderrRing: p.stderrRing,
		Age: uint64(time.Since(p.began)), Ended: p.ended, Status: uint32(p.status),
	}
	if p.ended {
		m.Age = uint64(p.wall)
	}
	p.in.progress(&m)
	var rings []int
	for i, o := range p.outputs {
		head, released := o.state()
		m.Released[i] = released
		if p.ended {
			m.Heads[i] = head
		}
		rings = append(rings, o.ring.fd)
	}
	return m, rings
}

// failed reports which step of a launch failed.
func failed(step string, err error) *wire.FailedMsg {
	errno, ok := errors.AsType[syscall.Errno](err)
	if !ok {
		errno = unix.EIO
	}
	return &wire.FailedMsg{Step: step, Errno: errno}
}
