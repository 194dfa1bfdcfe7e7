package agent

import (
	"os"
	"sync"
	"syscall"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// input leads to the stdin of a managed process: a pipe or a terminal, with a queue of at
// most wire.InputWindow bytes in front of it.
type input struct {
	number uint32 // of the process
	tty    bool

	mu       sync.Mutex
	file     *os.File // nil once closed
	raw      syscall.RawConn
	client   *client // the client to notify: the last one that sent something
	queue    []byte
	accepted uint64 // bytes written to the pipe
	closing  bool   // the client has ended the input
	state    uint32 // wire.InputOpen …
	draining bool   // a goroutine empties the queue

	gone chan struct{} // closed when the process is gone
}

// newInput takes ownership of file, which is in non-blocking mode. It only borrows the file
// of a terminal, which is the output as well.
func newInput(file *os.File, tty bool) (*input, error) {
	raw, err := file.SyscallConn()
	return &input{tty: tty, file: file, raw: raw, gone: make(chan struct{})}, err
}

// add accepts data, whose first byte has offset off. It returns false if the client broke a
// rule: it left a gap, sent too much, or sent something after the end.
func (in *input) add(c *client, off uint64, data []byte) bool {
	in.mu.Lock()
	in.client = c.orLater(in.client)
	ok := in.state != wire.InputOpen || in.takeLocked(off, data)
	in.mu.Unlock()
	in.tell()
	return ok
}

func (in *input) takeLocked(off uint64, data []byte) bool {
	queued := in.accepted + uint64(len(in.queue))
	if off > queued {
		return false
	}
	data = data[min(queued-off, uint64(len(data))):] // skips bytes that were sent before
	if len(in.queue)+len(data) > wire.InputWindow || in.closing && len(data) > 0 {
		return false
	}
	in.writeLocked(data)
	return true
}

// writeLocked writes as much of data as the process accepts now, and queues the rest.
func (in *input) writeLocked(data []byte) {
	if !in.draining && len(data) > 0 {
		n := 0
		var err error
		cerr := in.raw.Control(func(fd uintptr) { n, err = write(int(fd), data) })
		in.wroteLocked(n, err, cerr)
		data = data[n:]
	}
	if in.state != wire.InputOpen || len(data) == 0 {
		return
	}
	in.queue = append(in.queue, data...)
	if !in.draining {
		in.draining = true
		go in.drain()
	}
}

// write calls write(2), and returns 0 instead of -1.
func write(fd int, b []byte) (n int, err error) {
	err = linux.Retry(func() (err error) { n, err = unix.Write(fd, b); return err })
	return max(n, 0), err
}

// wroteLocked notes the result of a write.
func (in *input) wroteLocked(n int, errs ...error) {
	in.accepted += uint64(n)
	for _, err := range errs {
		if err != nil && err != unix.EAGAIN {
			in.state, in.queue = wire.InputBroken, nil
			in.closeLocked()
		}
	}
}

// drain empties the queue.
func (in *input) drain() {
	for {
		in.mu.Lock()
		if len(in.queue) == 0 {
			in.queue, in.draining = nil, false
			in.finishLocked()
			in.mu.Unlock()
			in.tell()
			return
		}
		chunk, raw := in.queue, in.raw
		in.mu.Unlock()
		n := 0
		var err error
		cerr := raw.Write(func(fd uintptr) bool {
			n, err = write(int(fd), chunk)
			return err != unix.EAGAIN
		})
		in.mu.Lock()
		in.wroteLocked(n, err, cerr)
		if in.state == wire.InputOpen {
			in.queue = in.queue[n:]
		}
		in.mu.Unlock()
		in.tell()
	}
}

// end ends the input at offset off, which must be its current end.
func (in *input) end(c *client, off uint64) bool {
	in.mu.Lock()
	in.client = c.orLater(in.client)
	ok := in.state != wire.InputOpen || off == in.accepted+uint64(len(in.queue))
	if ok {
		in.closing = true
		in.finishLocked()
	}
	in.mu.Unlock()
	in.tell()
	return ok
}

// finishLocked closes stdin once the queue is empty, if the client has ended the input.
func (in *input) finishLocked() {
	switch {
	case !in.closing || in.draining || in.state != wire.InputOpen:
	case in.tty:
		in.draining = true
		go in.finishTerminal(in.raw)
	default:
		in.state = wire.InputClosed
		in.closeLocked()
	}
}

// finishTerminal sends the end-of-file character, once the terminal has room for it, and
// makes sure that the process notices it.
func (in *input) finishTerminal(raw syscall.RawConn) {
	linux.EndTerminalInput(raw, in.gone, func(err error) {
		in.mu.Lock()
		in.draining = false
		in.wroteLocked(0, err)
		if in.state == wire.InputOpen {
			in.state = wire.InputClosed
			in.closeLocked()
		}
		in.mu.Unlock()
		in.tell()
	})
}

// abandon ends the input of a process that is gone.
func (in *input) abandon() {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.state == wire.InputOpen {
		in.state, in.queue = wire.InputBroken, nil
	}
	in.closeLocked()
	select {
	case <-in.gone:
	default:
		close(in.gone)
	}
}

func (in *input) closeLocked() {
	if in.file != nil && !in.tty {
		in.file.Close()
	}
	in.file = nil
}

// tell tells the client how much input was accepted.
func (in *input) tell() {
	in.mu.Lock()
	c := in.client
	m := wire.AcceptedMsg{Offset: in.accepted, State: in.state}
	in.mu.Unlock()
	if c != nil {
		c.send(wire.TypeAccepted, in.number, m.Marshal())
	}
}

// attend makes c the client to notify: it may have to wait for room before it can send.
func (in *input) attend(c *client) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.client = c.orLater(in.client)
}

// progress fills in the input's part of the answer to List.
func (in *input) progress(m *wire.ManagedMsg) {
	in.mu.Lock()
	defer in.mu.Unlock()
	m.Accepted, m.Queued, m.Input = in.accepted, in.accepted+uint64(len(in.queue)), in.state
}
