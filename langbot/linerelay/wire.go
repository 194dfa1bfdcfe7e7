package linerelay

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/internal/wsconn"
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
	// errBusy: a control frame could not be written in time, because another write was
	// under way.
	errBusy = errors.New("the connection is busy")
	// errClosed: no frame may follow a close frame.
	errClosed = errors.New("a close frame was sent")
	// errBroken: no frame may follow part of a frame.
	errBroken = errors.New("the connection is broken")
)

// wire is a connection to which whole frames are written: many messages with one system
// call, and control frames between them.
type wire struct {
	*wsconn.Conn
	reads   atomic.Int64  // number of reads that returned bytes
	writing chan struct{} // has an element while a write is under way
	ended   error         // why nothing may follow; guarded by writing
}

func newWire(c *wsconn.Conn) *wire { return &wire{Conn: c, writing: make(chan struct{}, 1)} }

func (w *wire) Read(p []byte) (int, error) {
	n, err := w.Conn.Read(p)
	if n > 0 {
		w.reads.Add(1)
	}
	return n, err
}

// Write writes whole frames. The WebSocket library uses it as well, for its answer to the
// upgrade and for a close frame.
func (w *wire) Write(p []byte) (int, error) {
	w.writing <- struct{}{}
	defer func() { <-w.writing }()
	return w.writeFrames(p)
}

// writeControl writes a control frame, whose payload has at most 125 bytes. It returns
// errBusy if other writes take longer than patience.
func (w *wire) writeControl(opcode byte, payload []byte, patience time.Duration) error {
	t := time.NewTimer(patience)
	defer t.Stop()
	select {
	case w.writing <- struct{}{}:
	case <-t.C:
		return errBusy
	}
	defer func() { <-w.writing }()
	_, err := w.writeFrames(appendFrame(nil, opcode, true, payload))
	return err
}

// busy reports whether a write is under way.
func (w *wire) busy() bool { return len(w.writing) > 0 }

// writeFrames writes p, which consists of whole frames. The caller has put an element into
// writing.
func (w *wire) writeFrames(p []byte) (int, error) {
	if w.ended != nil {
		return 0, w.ended
	}
	n, err := w.Conn.Write(p)
	if err != nil {
		w.ended = errBroken
	} else if p[0] == finalBit|opClose {
		w.ended = errClosed
	}
	return n, err
}
