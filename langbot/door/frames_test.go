package door

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/boxd/boxd/langbot/protocol"
)

// cut is a simpler feed: it gets the whole stream at once.
func cut(b []byte) (n int, err error, closed bool) {
	var fragments, size uint64
	var packed bool
	for n < len(b) {
		rest := b[n:]
		if len(rest) < 2 {
			return len(b), nil, closed
		}
		headLen, length := 2, uint64(rest[1]&0x7f)
		switch length {
		case 126:
			headLen += 2
		case 127:
			headLen += 8
		}
		if rest[1]&0x80 != 0 {
			headLen += 4
		}
		if len(rest) < headLen {
			return len(b), nil, closed
		}
		if length == 126 {
			length = uint64(binary.BigEndian.Uint16(rest[2:]))
		} else if length == 127 {
			length = binary.BigEndian.Uint64(rest[2:])
		}
		op := rest[0] & 15
		closed = closed || op == 8
		if op <= 8 && op != 8 {
			if op != 0 {
				fragments, size, packed = 0, 0, rest[0]&0x40 != 0
			}
			fragments++
			most := uint64(protocol.MaxMessage)
			if packed {
				most += maxExpansion
			}
			if length > most || size+length > most {
				return n + headLen, errTooBig, closed
			}
			if size += length; fragments > maxFragments {
				return n + headLen, errFragments, closed
			}
		}
		if length > uint64(len(rest)-headLen) {
			return len(b), nil, closed
		}
		n += headLen + int(length)
	}
	return n, nil, closed
}

func FuzzFrames(f *testing.F) {
	f.Add(bytes.Join([][]byte{frame(0x01, []byte("a")), frame(0x89, nil), frame(0x80, []byte("b")), frame(0x88, []byte{3, 232})}, nil), 1)
	f.Add(head(0x81, protocol.MaxMessage+1), 3)
	f.Add(head(0xc1, 1<<63), 2)
	f.Add(append(frame(0x01, make([]byte, 70000)), head(0x00, protocol.MaxMessage-69999)...), 100)
	f.Fuzz(func(t *testing.T, b []byte, step int) {
		step = max(1, step%64)
		want, wantErr, wantClosed := cut(b)
		var fr frames
		n, err := 0, error(nil)
		for n < len(b) && err == nil {
			var k int
			piece := b[n:min(n+step, len(b))]
			if k, err = fr.feed(piece); k > len(piece) || err == nil && k < len(piece) {
				t.Fatalf("feed took %d of %d bytes", k, len(piece))
			}
			n += k
		}
		if n != want || !errors.Is(err, wantErr) || fr.closed != wantClosed {
			t.Fatalf("stopped at %d with %v, closed %v; want %d, %v, %v", n, err, fr.closed, want, wantErr, wantClosed)
		}
	})
}
