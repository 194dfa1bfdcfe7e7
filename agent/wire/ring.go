package wire

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// RingHeader is the size in bytes of what precedes the ring in its file: two records
// of RingRecord bytes, of which the agent writes the one and then the other, so that
// one of them is whole whenever it may be interrupted. A record is three words of
// 64 bits, little endian:
//
//	 0  floor: the offset of the oldest byte that is whole
//	 8  head: the offset behind the newest byte
//	16  a check of the two, which shows a record that is being written
//
// The byte of offset n lies at RingHeader + n modulo the size of the ring. Floor is
// raised before the bytes below it are overwritten, head when the bytes below it are
// there. So a reader takes bytes first and then the floor again: what lies below that
// may not be what was there.
const (
	RingHeader  = 4096
	RingRecord  = 32
	RingRecords = 2 * RingRecord
)

// RingCheck is the third word of a record.
func RingCheck(floor, head uint64) uint64 { return ^(floor ^ bits.RotateLeft64(head, 32)) }

// RingBounds reads the first RingRecords bytes of a ring file. It fails if both
// records were written meanwhile: read them again.
func RingBounds(b []byte) (floor, head uint64, err error) {
	err = fmt.Errorf("bounds of a ring are not whole: %w", ErrProtocol)
	for ; len(b) >= RingRecord; b = b[RingRecord:] {
		f, h := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
		if binary.LittleEndian.Uint64(b[16:]) == RingCheck(f, h) {
			floor, head, err = max(floor, f), max(head, h), nil
		}
	}
	return floor, head, err
}

// CheckRing checks the bounds of a ring of size bytes. They only grow, and were lastFloor
// and lastHead before.
func CheckRing(size, lastFloor, lastHead, floor, head uint64) error {
	if floor > head || head-floor > size || head > maxOffset || floor < lastFloor || head < lastHead {
		return fmt.Errorf("ring of %d bytes has bounds %d to %d after %d to %d: %w", size, floor, head, lastFloor, lastHead, ErrProtocol)
	}
	return nil
}
