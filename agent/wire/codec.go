package wire

import (
	"encoding/binary"
	"fmt"
)

// encoder appends little-endian integers and length-prefixed byte strings.
type encoder struct{ b []byte }

func (e *encoder) u32(v uint32) *encoder {
	e.b = binary.LittleEndian.AppendUint32(e.b, v)
	return e
}

func (e *encoder) u64(v uint64) { e.b = binary.LittleEndian.AppendUint64(e.b, v) }

func (e *encoder) bool(v bool) {
	if v {
		e.b = append(e.b, 1)
	} else {
		e.b = append(e.b, 0)
	}
}

func (e *encoder) bytes(v []byte) {
	e.u32(uint32(len(v)))
	e.b = append(e.b, v...)
}

func (e *encoder) strings(v []string) {
	e.u32(uint32(len(v)))
	for _, s := range v {
		e.u32(uint32(len(s)))
		e.b = append(e.b, s...)
	}
}

// decoder reads the output of an encoder. After the first fault, bad is set and all
// further reads return zero values, so callers check only once, with done.
type decoder struct {
	b   []byte
	bad bool
}

func (d *decoder) take(n int) []byte {
	if d.bad || n > len(d.b) {
		d.bad = true
		return nil
	}
	v := d.b[:n]
	d.b = d.b[n:]
	return v
}

func (d *decoder) u32() uint32 {
	if v := d.take(4); v != nil {
		return binary.LittleEndian.Uint32(v)
	}
	return 0
}

func (d *decoder) u64() uint64 {
	if v := d.take(8); v != nil {
		return binary.LittleEndian.Uint64(v)
	}
	return 0
}

func (d *decoder) bool() bool { return d.upToByte(1) == 1 }

func (d *decoder) upToByte(most byte) byte {
	v := d.take(1)
	if len(v) == 0 {
		return 0
	}
	if v[0] > most {
		d.bad = true
	}
	return v[0]
}

// bytes returns a part of the body, not a copy.
func (d *decoder) bytes() []byte { return d.take(int(d.u32())) }

func (d *decoder) strings() []string {
	n := d.u32()
	// Each string takes at least four bytes. A count that the body cannot hold must not
	// cause an allocation.
	if n > MaxStrings || int(n) > len(d.b)/4 {
		d.bad = true
		return nil
	}
	v := make([]string, 0, n)
	for range n {
		v = append(v, string(d.bytes()))
	}
	return v
}

// done returns an error if there was a fault, or if bytes are left over.
func (d *decoder) done(what string) error {
	if d.bad || len(d.b) != 0 {
		return fmt.Errorf("parsing %s of %d spare bytes: %w", what, len(d.b), ErrProtocol)
	}
	return nil
}
