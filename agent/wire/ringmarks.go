package wire

import "encoding/binary"

// RingMark records when a byte of a ring arrived. Marks lie after the ring in its file, which
// has RingMarksSize bytes for them, or none if an older agent made it. They are words of 64
// bits, little endian:
//
//	 0  sequence: odd while marks are being moved, another number afterwards
//	 8  how many marks there are
//	16  the marks, oldest first, each an offset and a time
//
// A mark covers the bytes from its offset up to the offset of the next mark. The agent appends
// marks. When the space is full, it removes the marks of overwritten bytes and every other
// mark of the older half. So recent times are exact, and older ones are coarser.
type RingMark struct {
	Offset uint64
	Time   int64 // nanoseconds of Unix time
}

const (
	// RingMarksSize is the size of the whole table. RingMarkSize is the size of a mark, and
	// of the two words before the marks.
	RingMarksSize = 60 << 10
	RingMarkSize  = 16
	// RingMarks is the largest number of marks.
	RingMarks = RingMarksSize/RingMarkSize - 1
)

// RingMarksHead parses the two words before the marks. It fails if marks are being moved, or
// if the number of marks is too large.
func RingMarksHead(b []byte) (sequence uint64, count int, ok bool) {
	sequence, n := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint64(b[8:])
	return sequence, int(min(n, RingMarks)), sequence%2 == 0 && n <= RingMarks
}

// ParseRingMarks parses marks while offset and time grow: a hostile agent may write anything
// there.
func ParseRingMarks(b []byte) []RingMark {
	marks := make([]RingMark, 0, len(b)/RingMarkSize)
	for ; len(b) >= RingMarkSize; b = b[RingMarkSize:] {
		m := RingMark{binary.LittleEndian.Uint64(b), int64(binary.LittleEndian.Uint64(b[8:]))}
		if n := len(marks); n > 0 && (m.Offset <= marks[n-1].Offset || m.Time < marks[n-1].Time) || m.Offset > maxOffset || m.Time < 0 {
			break
		}
		marks = append(marks, m)
	}
	return marks
}
