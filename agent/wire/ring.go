package wire

import (
	"encoding/binary"
	"fmt"
	"math/bits"
)

// RingHeader is the size in bytes of the header before the ring in its file. The header has
// two records of RingRecord bytes, which the agent writes alternately, so that one of them is
// intact whenever the agent is interrupted. A record is three words of 64 bits, little endian:
//
//	 0  floor: the offset of the oldest byte that is intact
//	 8  head: the offset after the newest byte
//	16  a checksum of the two, which is wrong while the record is being written
//
// The byte of offset n lies at RingHeader + n modulo the size of the ring. The agent raises
// floor before it overwrites the bytes below it, and head after it has written the bytes
// below it. So a reader reads the bytes first and then floor again: bytes below floor may
// have been overwritten.
const (
	RingHeader  = 4096
	RingRecord  = 32
	RingRecords = 2 * RingRecord
)

// RingCheck returns the third word of a record.
func RingCheck(floor, head uint64) uint64 { return ^(floor ^ bits.RotateLeft64(head, 32)) }

// RingBounds parses the first RingRecords bytes of a ring file. It fails if both records were
// being written when they were read; then read them again.
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

// CheckRing checks the bounds of a ring of size bytes. The bounds only grow; the last ones
// were lastFloor and lastHead.
func CheckRing(size, lastFloor, lastHead, floor, head uint64) error {
	if floor > head || head-floor > size || head > maxOffset || floor < lastFloor || head < lastHead {
		return fmt.Errorf("ring of %d bytes has bounds %d to %d after %d to %d: %w", size, floor, head, lastFloor, lastHead, ErrProtocol)
	}
	return nil
}
