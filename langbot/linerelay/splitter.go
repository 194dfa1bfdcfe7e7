package linerelay

import (
	"bytes"
	"sync"
	"unicode/utf8"
)

const (
	// maxMessage is the most that a message has, in bytes: what the client's library
	// takes before it closes the connection with 1009.
	maxMessage = 1 << 20
	// partSize is how much of a line without an end is sent as the beginning of its
	// message: neither this process nor the ring has to hold all of a long line, which
	// a ring of the same size could not.
	partSize = 64 << 10
	// keepPart is how much of a message under way counts as not sent: who attaches next gets
	// the line from its beginning. Half of the smallest ring that processes are given.
	keepPart = 512 << 10

	smallBuffer = 4 << 10 // of an idle stream
	largeBuffer = 2 * partSize
)

var largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}

// splitter cuts a stream into messages: one for each line, its newline included, of
// at most maxMessage bytes. A longer line becomes several messages. What is no UTF-8
// becomes U+FFFD, one for each byte, and characters are never cut, however the stream
// was read. The pieces together are the stream.
type splitter struct {
	buf  []byte
	r, w int    // buf[r:w] is in no piece yet
	seen int    // there is no newline in buf[r:r+seen]
	text []byte // a piece in which bytes were replaced

	next  int64 // offset of buf[r] in the stream
	begin int64 // offset of the message that is under way, or comes next
	open  bool  // pieces of it were taken
	room  int   // what it may still have
}

// piece is a message or a part of one.
type piece struct {
	text  []byte // valid until the splitter is used again
	first bool   // begins a message
	last  bool   // ends it
}

func newSplitter(offset int64) *splitter {
	return &splitter{next: offset, begin: offset, room: maxMessage}
}

// end is the offset behind what was read.
func (s *splitter) end() int64 { return s.next + int64(s.w-s.r) }

// done is the offset up to which all is in pieces, and nobody needs it any more once
// they have been sent.
func (s *splitter) done() int64 {
	if s.open && s.next-s.begin <= keepPart {
		return s.begin
	}
	return s.next
}

// space is where to read to, not little once line has found nothing.
func (s *splitter) space() []byte {
	pending := s.w - s.r
	full, idle := s.w == len(s.buf), s.w <= smallBuffer
	switch {
	case len(s.buf) == largeBuffer && idle && pending <= smallBuffer/2, s.buf == nil:
		s.move(make([]byte, smallBuffer))
	case len(s.buf) == smallBuffer && (full || pending > smallBuffer/2):
		s.move(largeBuffers.Get().(*[largeBuffer]byte)[:])
	case s.r > 0:
		s.move(s.buf)
	}
	return s.buf[s.w:]
}

// move puts what is in no piece yet at the beginning of buf.
func (s *splitter) move(buf []byte) {
	n := copy(buf, s.buf[s.r:s.w])
	if len(s.buf) == largeBuffer && len(buf) != largeBuffer {
		largeBuffers.Put((*[largeBuffer]byte)(s.buf))
	}
	s.buf, s.r, s.w = buf, 0, n
}

// release gives the buffer back. The splitter is of no use any more.
func (s *splitter) release() {
	s.r, s.w = 0, 0
	s.move(nil)
}

// add says how many bytes were read to space.
func (s *splitter) add(n int) { s.w += n }

// line returns the next line, or a part of one that has no end yet and is long. It
// has to be called until there is none.
func (s *splitter) line() (piece, bool) {
	raw := s.buf[s.r:s.w]
	if i := bytes.IndexByte(raw[s.seen:], '\n'); i >= 0 {
		return s.take(raw[:s.seen+i+1], true), true
	}
	s.seen = len(raw)
	if len(raw) >= partSize {
		return s.take(raw, false), true
	}
	return piece{}, false
}

// rest returns what is left and ends its message, whether or not its line has an end.
// The last, incomplete character is only part of it at the end of the stream. It has
// to be called until there is none.
func (s *splitter) rest(final bool) (piece, bool) {
	if !s.hasRest(final) {
		return piece{}, false
	}
	p := s.take(s.buf[s.r:s.w], final)
	if !p.last && !s.hasText(final) {
		p.last = true
		s.close()
	}
	return p, true
}

// hasRest says whether rest has something.
func (s *splitter) hasRest(final bool) bool { return s.open || s.hasText(final) }

func (s *splitter) hasText(final bool) bool {
	raw := s.buf[s.r:s.w]
	return len(raw) > 0 && (final || incomplete(raw) < len(raw))
}

// skip goes on at an offset further on, because what is in between is gone. What was
// read to space already counts from there.
func (s *splitter) skip(to int64) {
	s.r, s.seen = s.w, 0
	s.next = to
	s.close()
}

// take makes a piece of raw, or of as much of it as there is room for. all says that
// no more bytes belong to its last character.
func (s *splitter) take(raw []byte, all bool) piece {
	text, n, full := s.cut(raw, all)
	p := piece{text: text, first: !s.open}
	s.r += n
	s.seen = max(s.seen-n, 0)
	s.next += int64(n)
	s.room -= len(text)
	s.open = true
	if full || s.room == 0 || n > 0 && raw[n-1] == '\n' {
		p.last = true
		s.close()
	}
	return p
}

func (s *splitter) close() { s.open, s.room, s.begin = false, maxMessage, s.next }

// cut returns the text of the first n bytes of raw. full says that there is no room
// for the character behind them.
func (s *splitter) cut(raw []byte, all bool) (text []byte, n int, full bool) {
	if !all {
		raw = raw[:len(raw)-incomplete(raw)]
	}
	if len(raw) <= s.room && utf8.Valid(raw) {
		return raw, len(raw), false
	}
	s.text = s.text[:0]
	for n < len(raw) {
		r, size := utf8.DecodeRune(raw[n:])
		if len(s.text)+utf8.RuneLen(r) > s.room {
			return s.text, n, true
		}
		s.text = utf8.AppendRune(s.text, r)
		n += size
	}
	return s.text, n, false
}

// incomplete is how many bytes at the end of p are the beginning of a character whose
// end is missing.
func incomplete(p []byte) int {
	for n := 1; n <= min(len(p), utf8.UTFMax-1); n++ {
		if tail := p[len(p)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}
