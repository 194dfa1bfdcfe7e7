package relay

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
)

// Sizes of the protocol, see docs/relay.md.
const (
	MaxData  = 256 << 10 // payload of a Data frame
	MaxStdin = 64 << 10  // payload of a Stdin frame

	dataHeader  = 1 + 1 + 8
	stdinHeader = 1 + 8
	maxToClient = dataHeader + MaxData
	maxToServer = stdinHeader + MaxStdin
	helloSize   = 4 + 8 + 4 + 4 + 6*8
	maxRefused  = 1024
	maxText     = 255
)

// Types of frames.
const (
	typeHello    = 0x01
	typeData     = 0x02
	typeGap      = 0x03
	typeStdinAck = 0x04
	typeWriter   = 0x05
	typeRefused  = 0x06
	typeExit     = 0x07

	typeStdin      = 0x11
	typeCloseStdin = 0x12
	typeAck        = 0x13
	typeResize     = 0x14
	typeSignal     = 0x15
)

const version = 1

// Flags of a Hello and of a StdinAck.
const (
	flagWriter = 1 << iota
	flagTTY
	flagStdin
	flagStderr
	flagInterrupted

	flagClosed = 1
)

// ErrProtocol is matched by every error about a peer that violates the protocol.
var ErrProtocol = errors.New("relay protocol error")

func malformed(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrProtocol}, args...)...)
}

// Frames that a client sends.
type (
	stdinFrame struct {
		offset int64
		data   []byte // part of the message
	}
	closeStdinFrame struct{ offset int64 }
	ackFrame        struct {
		stream Stream
		offset int64
	}
	resizeFrame struct{ rows, cols uint16 }
	signalFrame struct{ number int }
)

// parser reads values from a message. After the first fault it sets bad and returns zero
// values only, so that one check at the end is enough.
type parser struct {
	b   []byte
	bad bool
}

func (p *parser) take(n int) []byte {
	if p.bad || n > len(p.b) {
		p.bad = true
		return make([]byte, min(n, 8)) // numbers have at most 8 bytes; text checks bad
	}
	v := p.b[:n]
	p.b = p.b[n:]
	return v
}

func (p *parser) u8() byte    { return p.take(1)[0] }
func (p *parser) u16() uint16 { return binary.BigEndian.Uint16(p.take(2)) }
func (p *parser) u32() uint32 { return binary.BigEndian.Uint32(p.take(4)) }

func (p *parser) offset() int64 {
	v := binary.BigEndian.Uint64(p.take(8))
	if v > math.MaxInt64 {
		p.bad = true
		return 0
	}
	return int64(v)
}

func (p *parser) stream() Stream {
	s := Stream(p.u8())
	p.bad = p.bad || s != Stdout && s != Stderr
	return s
}

func (p *parser) text() string {
	n := int(p.u8())
	v := p.take(n)
	if p.bad {
		return ""
	}
	return string(v)
}

// rest returns the remaining bytes: at least one, and at most most.
func (p *parser) rest(most int) []byte {
	v := p.b
	p.bad = p.bad || len(v) == 0 || len(v) > most
	p.b = nil
	return v
}

// done returns an error after a fault, or if bytes are left over.
func (p *parser) done(name string) error {
	if p.bad || len(p.b) != 0 {
		return malformed("malformed %s frame", name)
	}
	return nil
}

// parseClient parses a message of a client. The result refers to msg.
func parseClient(msg []byte) (any, error) {
	p := &parser{b: msg}
	switch t := p.u8(); {
	case len(msg) == 0:
		return nil, malformed("empty message")
	case t == typeStdin:
		f := stdinFrame{offset: p.offset(), data: p.rest(MaxStdin)}
		p.bad = p.bad || f.offset > math.MaxInt64-MaxStdin
		return f, p.done("Stdin")
	case t == typeCloseStdin:
		f := closeStdinFrame{offset: p.offset()}
		return f, p.done("CloseStdin")
	case t == typeAck:
		f := ackFrame{stream: p.stream(), offset: p.offset()}
		return f, p.done("Ack")
	case t == typeResize:
		f := resizeFrame{rows: p.u16(), cols: p.u16()}
		return f, p.done("Resize")
	case t == typeSignal:
		f := signalFrame{number: int(p.u8())}
		p.bad = p.bad || f.number < 1 || f.number > 64
		return f, p.done("Signal")
	default:
		return nil, malformed("frame of unknown type %#x", t)
	}
}

// exitFrame is an Exit with the offsets at which the streams end.
type exitFrame struct {
	Exit
	stdout, stderr int64
}

// parseServer parses a message of a server: a Hello, an exitFrame, or an Event.
// The result refers to msg.
func parseServer(msg []byte) (any, error) {
	p := &parser{b: msg}
	switch t := p.u8(); {
	case len(msg) == 0:
		return nil, malformed("empty message")
	case t == typeHello:
		return parseHello(p)
	case t == typeData:
		f := Data{Stream: p.stream(), Offset: p.offset(), Bytes: p.rest(MaxData)}
		p.bad = p.bad || f.Offset > math.MaxInt64-MaxData
		return f, p.done("Data")
	case t == typeGap:
		f := Gap{Stream: p.stream(), From: p.offset(), To: p.offset()}
		p.bad = p.bad || f.To <= f.From
		return f, p.done("Gap")
	case t == typeStdinAck:
		flags := p.u8()
		p.bad = p.bad || flags&^flagClosed != 0
		f := StdinState{Closed: flags != 0, Accepted: p.offset()}
		return f, p.done("StdinAck")
	case t == typeWriter:
		v := p.u8()
		p.bad = p.bad || v > 1
		return WriterChanged{Writer: v == 1}, p.done("Writer")
	case t == typeRefused:
		f := Refused{Reason: string(p.rest(maxRefused))}
		return f, p.done("Refused")
	case t == typeExit:
		return parseExit(p)
	default:
		return nil, malformed("frame of unknown type %#x", t)
	}
}

func parseExit(p *parser) (exitFrame, error) {
	var f exitFrame
	f.Code, f.Signal = int(int16(p.u16())), int(p.u8())
	f.stdout, f.stderr = p.offset(), p.offset()
	f.Verdict, f.Limit = p.text(), p.text()
	p.bad = p.bad || f.Code < -1 || f.Code > 255 || f.Signal > 64
	return f, p.done("Exit")
}

func parseHello(p *parser) (Hello, error) {
	var h Hello
	v, flags, zero := p.u8(), p.u8(), p.u8()
	if !p.bad && v != version {
		return h, malformed("version %d, this client knows %d", v, version)
	}
	p.bad = p.bad || zero != 0 || flags >= flagInterrupted<<1
	h.Writer, h.TTY = flags&flagWriter != 0, flags&flagTTY != 0
	h.HasStdin, h.HasStderr = flags&flagStdin != 0, flags&flagStderr != 0
	h.Interrupted = flags&flagInterrupted != 0
	h.StdinAccepted = p.offset()
	h.StdinWindow, h.Window = int64(p.u32()), int64(p.u32())
	for _, b := range []*Bounds{&h.Stdout, &h.Stderr} {
		*b = Bounds{Oldest: p.offset(), End: p.offset(), Start: p.offset()}
		p.bad = p.bad || b.Oldest > b.End || b.Start > b.End
	}
	p.bad = p.bad || h.Writer && (h.StdinWindow == 0 || h.Window == 0)
	return h, p.done("Hello")
}

func appendOffset(b []byte, v int64) []byte {
	return binary.BigEndian.AppendUint64(b, uint64(v))
}

func appendText(b []byte, s string) []byte {
	s = s[:min(len(s), maxText)]
	return append(append(b, byte(len(s))), s...)
}

func appendHello(b []byte, h Hello) []byte {
	var flags byte
	for i, set := range []bool{h.Writer, h.TTY, h.HasStdin, h.HasStderr, h.Interrupted} {
		if set {
			flags |= 1 << i
		}
	}
	b = append(b, typeHello, version, flags, 0)
	b = appendOffset(b, h.StdinAccepted)
	b = binary.BigEndian.AppendUint32(b, uint32(h.StdinWindow))
	b = binary.BigEndian.AppendUint32(b, uint32(h.Window))
	for _, s := range []Bounds{h.Stdout, h.Stderr} {
		b = appendOffset(appendOffset(appendOffset(b, s.Oldest), s.End), s.Start)
	}
	return b
}

// putData writes the header of a Data frame to the start of b.
func putData(b []byte, s Stream, off int64) {
	b[0], b[1] = typeData, byte(s)
	binary.BigEndian.PutUint64(b[2:], uint64(off))
}

func appendGap(b []byte, g Gap) []byte {
	b = append(b, typeGap, byte(g.Stream))
	return appendOffset(appendOffset(b, g.From), g.To)
}

func appendStdinState(b []byte, s StdinState) []byte {
	var flags byte
	if s.Closed {
		flags = flagClosed
	}
	return appendOffset(append(b, typeStdinAck, flags), s.Accepted)
}

func appendExit(b []byte, f exitFrame) []byte {
	b = append(b, typeExit)
	b = binary.BigEndian.AppendUint16(b, uint16(int16(f.Code)))
	b = append(b, byte(f.Signal))
	b = appendOffset(appendOffset(b, f.stdout), f.stderr)
	return appendText(appendText(b, f.Verdict), f.Limit)
}

func appendAck(b []byte, s Stream, off int64) []byte {
	return appendOffset(append(b, typeAck, byte(s)), off)
}
