package wire

import (
	"encoding/binary"
	"fmt"
	"testing"
)

// Marks are parsed up to the first one that makes no sense.
func TestParseRingMarks(t *testing.T) {
	for _, c := range []struct {
		words []uint64
		want  string
	}{
		{nil, "[]"},
		{[]uint64{0, 5, 10, 5, 11, 9}, "[{0 5} {10 5} {11 9}]"},
		{[]uint64{0, 5, 0, 6, 11, 9}, "[{0 5}]"},
		{[]uint64{0, 5, 3, 4, 11, 9}, "[{0 5}]"},
		{[]uint64{0, 1 << 63}, "[]"},
		{[]uint64{1 << 63, 5}, "[]"},
		{[]uint64{0, 5, 7}, "[{0 5}]"},
	} {
		var b []byte
		for _, w := range c.words {
			b = binary.LittleEndian.AppendUint64(b, w)
		}
		if got := fmt.Sprint(ParseRingMarks(b)); got != c.want {
			t.Errorf("%v: %s, want %s", c.words, got, c.want)
		}
	}
	for _, c := range []struct {
		sequence, count uint64
		ok              bool
	}{{0, 0, true}, {2, RingMarks, true}, {1, 3, false}, {2, RingMarks + 1, false}, {2, 1 << 63, false}} {
		b := binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, c.sequence), c.count)
		if _, n, ok := RingMarksHead(b); ok != c.ok || n < 0 || n > RingMarks {
			t.Errorf("%+v: %d, %v", c, n, ok)
		}
	}
}
