package door

import (
	"errors"
	"io"
	"time"
	"unicode/utf8"

	"github.com/boxd/boxd/langbot/protocol"
)

var (
	errBinary = errors.New("binary message")
	errUTF8   = errors.New("text that is not UTF-8")
)

// receive reads one message and starts the action that it requests. A long message keeps
// its turn until it counts as a request under way, or is dropped.
func (c *conn) receive(r io.Reader) error {
	var t *turn // nil: the message is short so far
	long := func() error {
		next := &turn{meter: c.meter, instance: c.info.instance, length: c.d.times.turn}
		if err := c.d.memory.reading.enter(c.ctx, next, c.d.times.wait); err != nil {
			return err
		}
		t = next
		c.meter.messageDeadline = time.Now().Add(c.d.times.message) // the wait was not the peer's fault
		return nil
	}
	defer func() {
		if t != nil {
			c.d.memory.reading.leave(t)
		}
	}()
	c.meter.messageDeadline = time.Now().Add(c.d.times.message)
	msg, err := readMessage(r, long)
	c.meter.messageDeadline = time.Time{}
	switch {
	case err != nil:
		return err
	case !utf8.Valid(msg):
		return errUTF8
	}
	c.startAction(msg)
	return nil
}

// readMessage reads all of r. It calls long before its buffer exceeds own bytes. It
// allocates at most twice what arrives.
func readMessage(r io.Reader, long func() error) ([]byte, error) {
	b := make([]byte, 0, 1<<10)
	var next [1]byte
	for {
		if len(b) == cap(b) { // find out whether there is more, before growing
			switch _, err := io.ReadFull(r, next[:]); {
			case err == io.EOF:
				return b, nil
			case err != nil:
				return nil, err
			}
			switch len(b) {
			case protocol.MaxMessage:
				return nil, errTooBig
			case own:
				if err := long(); err != nil {
					return nil, err
				}
			}
			b = append(make([]byte, 0, min(2*cap(b), protocol.MaxMessage)), b...)
			b = append(b, next[0])
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		switch {
		case err == io.EOF:
			return b, nil
		case err != nil:
			return nil, err
		}
	}
}
