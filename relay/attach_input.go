package relay

import (
	"net"
	"syscall"
)

// Write sends p to stdin. It waits while too many bytes are unacknowledged. Bytes that it
// returned as written are sent again if a connection is lost.
//
// Errors: ErrNotWriter; syscall.EPIPE, if stdin is closed; net.ErrClosed.
func (a *Attachment) Write(p []byte) (int, error) {
	a.imu.Lock()
	defer a.imu.Unlock()
	done := 0
	for done < len(p) {
		n, c, err := a.reserve(p[done:])
		if err != nil {
			return done, err
		}
		if c != nil && n > 0 && c.sendStdin(p[done:done+n]) != nil {
			c.Close() // Recv notices, and sends it again
		}
		done += n
	}
	return done, nil
}

// reserve keeps a first part of p until it is acknowledged, and returns its size
// and the connection to send it on.
func (a *Attachment) reserve(p []byte) (int, *Client, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for {
		if err := a.inputErrorLocked(); err != nil {
			return 0, nil, err
		}
		if room := int(a.hello.StdinWindow) - len(a.unacked); room > 0 {
			n := min(room, len(p), MaxStdin)
			a.unacked = append(a.unacked, p[:n]...)
			return n, a.c, nil
		}
		moved := a.moved
		a.mu.Unlock()
		<-moved
		a.mu.Lock()
	}
}

func (a *Attachment) inputErrorLocked() error {
	switch {
	case a.done:
		return net.ErrClosed
	case !a.writer:
		return ErrNotWriter
	case a.closed || a.closing || !a.hello.HasStdin:
		return syscall.EPIPE
	}
	return nil
}

// CloseStdin ends stdin after the bytes that were written.
func (a *Attachment) CloseStdin() error {
	a.imu.Lock()
	defer a.imu.Unlock()
	a.mu.Lock()
	if err := a.inputErrorLocked(); err != nil {
		a.mu.Unlock()
		return err
	}
	a.closing = true
	c := a.c
	a.mu.Unlock()
	if c.CloseStdin() != nil {
		c.Close()
	}
	return nil
}

// Resize sets the size of the terminal. Each new connection sets the latest size again.
func (a *Attachment) Resize(rows, cols uint16) error {
	a.mu.Lock()
	a.size = &[2]uint16{rows, cols}
	c, writer := a.c, a.writer
	a.mu.Unlock()
	if !writer {
		return ErrNotWriter
	}
	c.Resize(rows, cols)
	return nil
}

// Signal sends a signal, 1 to 64, to the process. It is sent at most once, and not sent if
// Signal returns an error.
func (a *Attachment) Signal(sig int) error {
	a.mu.Lock()
	c := a.c
	a.mu.Unlock()
	return c.Signal(sig)
}
