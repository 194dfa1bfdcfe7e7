package relay

import (
	"encoding/binary"
	"fmt"
	"net"
	"syscall"
)

// change calls f, which changes the state that Write waits for, and wakes Write.
func (c *Client) change(f func()) {
	c.smu.Lock()
	defer c.smu.Unlock()
	f()
	close(c.moved)
	c.moved = make(chan struct{})
}

func (c *Client) stdinState(f StdinState) error {
	c.smu.Lock()
	before, sent := c.stdin.Accepted, c.sent
	c.smu.Unlock()
	if f.Accepted < before || f.Accepted > sent {
		return malformed("StdinAck of %d: want %d to %d", f.Accepted, before, sent)
	}
	c.change(func() { c.stdin.Accepted, c.stdin.Closed = f.Accepted, c.stdin.Closed || f.Closed })
	return nil
}

// Write sends p to stdin. It waits while too many bytes are unacknowledged. Errors:
// ErrNotWriter; syscall.EPIPE, if stdin is closed; those of the network.
func (c *Client) Write(p []byte) (int, error) {
	c.imu.Lock()
	defer c.imu.Unlock()
	done := 0
	for done < len(p) {
		room, moved, err := c.stdinRoom()
		if err != nil {
			return done, err
		}
		if room <= 0 {
			<-moved
			continue
		}
		n := int(min(room, int64(len(p)-done), MaxStdin))
		if err := c.sendStdin(p[done : done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

func (c *Client) stdinRoom() (int64, chan struct{}, error) {
	c.smu.Lock()
	defer c.smu.Unlock()
	switch {
	case c.ended:
		return 0, nil, net.ErrClosed
	case !c.writer:
		return 0, nil, ErrNotWriter
	case c.stdin.Closed || !c.hello.HasStdin:
		return 0, nil, syscall.EPIPE
	}
	return c.hello.StdinWindow - (c.sent - c.stdin.Accepted), c.moved, nil
}

// sendStdin sends the next bytes of stdin, at most MaxStdin.
func (c *Client) sendStdin(p []byte) error {
	c.smu.Lock()
	off := c.sent
	c.sent += int64(len(p))
	c.smu.Unlock()
	return c.send(append(appendOffset(append(make([]byte, 0, stdinHeader+len(p)), typeStdin), off), p...))
}

// CloseStdin ends stdin after the bytes that were written.
func (c *Client) CloseStdin() error {
	c.imu.Lock()
	defer c.imu.Unlock()
	if _, _, err := c.stdinRoom(); err != nil {
		return err
	}
	c.smu.Lock()
	off := c.sent
	c.smu.Unlock()
	return c.send(appendOffset([]byte{typeCloseStdin}, off))
}

// control sends a message that only the writer may send.
func (c *Client) control(msg []byte) error {
	c.smu.Lock()
	writer := c.writer
	c.smu.Unlock()
	if !writer {
		return ErrNotWriter
	}
	return c.send(msg)
}

// Resize sets the size of the terminal.
func (c *Client) Resize(rows, cols uint16) error {
	msg := binary.BigEndian.AppendUint16([]byte{typeResize}, rows)
	return c.control(binary.BigEndian.AppendUint16(msg, cols))
}

// Signal sends a signal, 1 to 64, to the process.
func (c *Client) Signal(sig int) error {
	if sig < 1 || sig > 64 {
		return fmt.Errorf("signal: %d: want 1 to 64", sig)
	}
	return c.control([]byte{typeSignal, byte(sig)})
}
