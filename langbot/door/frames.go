package door

import (
	"encoding/binary"
	"errors"

	"github.com/boxd/boxd/langbot/protocol"
)

// Limits of a message from a client.
const (
	maxFragments = 4096
	// maxExpansion is how much longer than its content a compressed message can be: five
	// bytes for every block that cannot be compressed (RFC 1951, 3.2.4).
	maxExpansion = 64 << 10
)

var (
	errFragments = errors.New("too many fragments")
	errTooBig    = errors.New("message too big")
)

// frames follows the frames of one direction of a WebSocket (RFC 6455, 5.2) by their
// headers, because the library limits neither the number of fragments nor the announced
// size. The library checks that the frames are well-formed.
type frames struct {
	head [14]byte
	have int    // bytes of head
	skip uint64 // bytes of the payload that are still to come

	fragments int    // of the message so far
	size      uint64 // of the message so far, including all of the current frame
	packed    bool   // the message is compressed

	closed  bool // a close frame has started
	lenient bool // nothing counts as a violation
}

// feed processes the next bytes. If the payload of a frame would break a limit, it returns
// the number of bytes before that payload.
func (f *frames) feed(p []byte) (n int, err error) {
	for n < len(p) {
		if f.skip > 0 {
			step := min(f.skip, uint64(len(p)-n))
			f.skip -= step
			n += int(step)
			continue
		}
		f.head[f.have] = p[n]
		f.have++
		n++
		if f.have == f.headLen() {
			f.have = 0
			if err := f.begin(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

// headLen returns the length of the header, as far as it is known.
func (f *frames) headLen() int {
	if f.have < 2 {
		return 2
	}
	n := 2
	switch f.head[1] & 0x7f {
	case 126:
		n += 2
	case 127:
		n += 8
	}
	if f.head[1]&0x80 != 0 {
		n += 4 // the mask
	}
	return n
}

// begin processes a complete header.
func (f *frames) begin() error {
	switch n := f.head[1] & 0x7f; n {
	case 126:
		f.skip = uint64(binary.BigEndian.Uint16(f.head[2:]))
	case 127:
		f.skip = binary.BigEndian.Uint64(f.head[2:])
	default:
		f.skip = uint64(n)
	}
	const fin, rsv1, control, closing, continuation = 0x80, 0x40, 8, 8, 0
	switch op := f.head[0] & 0x0f; {
	case op == closing:
		f.closed = true
		return nil
	case op > control:
		return nil // between the fragments of a message
	case op != continuation:
		f.fragments, f.size, f.packed = 0, 0, f.head[0]&rsv1 != 0
	}
	f.fragments++
	f.size += min(f.skip, 1<<62)
	most := uint64(protocol.MaxMessage)
	if f.packed {
		most += maxExpansion
	}
	switch {
	case f.lenient:
	case f.size > most:
		return errTooBig
	case f.fragments > maxFragments:
		return errFragments
	}
	f.size = min(f.size, 1<<62)
	return nil
}
