package linerelay

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// Opcodes and bits of a frame's header (RFC 6455, 5.2).
const (
	opContinuation = 0x0
	opText         = 0x1
	opClose        = 0x8
	opPing         = 0x9
	opPong         = 0xa
	finalBit       = 0x80
)

// appendFrame appends a frame of a server, which has no mask.
func appendFrame(b []byte, opcode byte, final bool, payload []byte) []byte {
	if final {
		opcode |= finalBit
	}
	switch n := len(payload); {
	case n < 126:
		b = append(b, opcode, byte(n))
	case n < 1<<16:
		b = append(b, opcode, 126)
		b = binary.BigEndian.AppendUint16(b, uint16(n))
	default:
		b = append(b, opcode, 127)
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return append(b, payload...)
}

var (
	// errBusy is that of a control frame for which there was no room in time.
	errBusy = errors.New("the connection is busy")
	// errClosed is that of a frame behind a close frame.
	errClosed = errors.New("a close frame was sent")
	// errBroken is that of a frame behind a part of one.
	errBroken = errors.New("the connection is broken")
)

// wire is a connection to which whole frames are written: many messages with one
// system call, and control frames in between. A write fails when the peer takes
// nothing for the time stall.
type wire struct {
	net.Conn
	stall time.Duration
	reads atomic.Int64  // how often something came
	turn  chan struct{} // has an element while somebody writes
	ended error         // why nothing may follow; of whose turn it is

	mu    sync.Mutex
	until time.Time // no write goes on beyond, if not zero
}

func newWire(c net.Conn, stall time.Duration) *wire {
	return &wire{Conn: c, stall: stall, turn: make(chan struct{}, 1)}
}

// SetWriteDeadline does nothing: writes set their own.
func (w *wire) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline sets that for reading.
func (w *wire) SetDeadline(t time.Time) error { return w.SetReadDeadline(t) }

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.reads.Add(1)
	}
	return n, err
}

// Write is for what the WebSocket library writes: its answer to the upgrade, and a
// close frame.
func (w *wire) Write(p []byte) (int, error) {
	w.turn <- struct{}{}
	defer func() { <-w.turn }()
	return w.write(p)
}

// frames writes data frames, or the beginnings of n bytes of them.
func (w *wire) frames(p []byte) (n int, err error) {
	w.turn <- struct{}{}
	defer func() { <-w.turn }()
	return w.write(p)
}

// control writes a control frame, whose payload has 125 bytes at most. It gives up
// after patience if others are being written.
func (w *wire) control(opcode byte, payload []byte, patience time.Duration) error {
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case w.turn <- struct{}{}:
	case <-t.C:
		return errBusy
	}
	defer func() { <-w.turn }()
	_, err := w.write(appendFrame(nil, opcode, true, payload))
	return err
}

// busy says whether something is being written now.
func (w *wire) busy() bool { return len(w.turn) > 0 }

// write writes p, which are whole frames. The caller has the turn.
func (w *wire) write(p []byte) (n int, err error) {
	if w.ended != nil {
		return 0, w.ended
	}
	for {
		m, err := w.writeOnce(p[n:])
		n += m
		if n == len(p) {
			if p[0] == finalBit|opClose {
				w.ended = errClosed
			}
			return n, nil
		}
		if m == 0 || !errors.Is(err, os.ErrDeadlineExceeded) {
			w.ended = errBroken
			return n, err
		}
	}
}

// writeOnce writes until the peer has taken nothing for long, or there is no more
// time.
func (w *wire) writeOnce(p []byte) (int, error) {
	w.mu.Lock()
	deadline := time.Now().Add(w.stall)
	if !w.until.IsZero() && w.until.Before(deadline) {
		deadline = w.until
	}
	err := w.Conn.SetWriteDeadline(deadline)
	w.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return w.Conn.Write(p)
}

// hurry bounds all writes, also one that is under way.
func (w *wire) hurry(d time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.until.IsZero() {
		w.until = time.Now().Add(d)
		w.Conn.SetWriteDeadline(w.until)
	}
}

// isNetError says whether an error of reading is one of the connection, not of what
// came through it.
func isNetError(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) || errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.ErrClosedPipe)
}
