package linerelay

import (
	"bytes"
	"sync"
	"unicode/utf8"
)

const (
	// maxMessage is the maximum size of a message, in bytes: the client's library closes
	// the connection with 1009 if one is longer.
	maxMessage = 1 << 20
	// partSize is how much of an incomplete line is sent as the first part of its message.
	// So neither this process nor the ring has to hold all of a long line; a ring of the
	// line's own size could not.
	partSize = 64 << 10
	// keepPart is how long an incomplete message may be to count as not sent, so that the
	// next client gets the line from its start. It is half of the smallest ring that
	// processes are given.
	keepPart = 512 << 10

	smallBuffer = 4 << 10 // for an idle stream
	largeBuffer = 2 * partSize
)

var largeBuffers = sync.Pool{New: func() any { return new([largeBuffer]byte) }}

// splitter cuts a stream into messages of at most maxMessage bytes: one for each line,
// including its newline. A longer line becomes several messages. Each byte that is not
// UTF-8 becomes U+FFFD, and characters are never cut, however the stream was read. The
// pieces together are the stream.
type splitter struct {
	buf  []byte
	r, w int    // buf[r:w] is not in a piece yet
	seen int    // there is no newline in buf[r:r+seen]
	text []byte // a piece in which bytes were replaced

	next  int64 // offset of buf[r] in the stream
	begin int64 // offset of the current message, or of the next one
	open  bool  // pieces of the current message were taken
	room  int   // how many more bytes it may have
}

// piece is a message or a part of one.
type piece struct {
	text  []byte // valid until the splitter is used again
	first bool   // starts a message
	last  bool   // ends it
}

func newSplitter(offset int64) *splitter {
	return &splitter{next: offset, begin: offset, room: maxMessage}
}

// end returns the offset after the bytes that were read.
func (s *splitter) end() int64 { return s.next + int64(s.w-s.r) }

// done returns the offset up to which the stream is no longer needed, once the pieces so far
// have been sent.
func (s *splitter) done() int64 {
	if s.open && s.next-s.begin <= keepPart {
		return s.begin
	}
	return s.next
}

// space returns the buffer to read into. Once line has returned nothing, it is not small.
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

// move copies the bytes that are not in a piece yet to the start of buf.
func (s *splitter) move(buf []byte) {
	n := copy(buf, s.buf[s.r:s.w])
	if len(s.buf) == largeBuffer && len(buf) != largeBuffer {
		largeBuffers.Put((*[largeBuffer]byte)(s.buf))
	}
	s.buf, s.r, s.w = buf, 0, n
}

// release returns the buffer. The splitter must not be used afterwards.
func (s *splitter) release() {
	s.r, s.w = 0, 0
	s.move(nil)
}

// add counts n bytes that were read into space.
func (s *splitter) add(n int) { s.w += n }

// line returns the next line, or part of a long incomplete one. It must be called until
// there is none.
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

// rest returns the bytes that are left and ends their message, even if the line is
// incomplete. An incomplete character at the end is included only if final, at the end of
// the stream. It must be called until there is none.
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

// hasRest reports whether rest has anything to return.
func (s *splitter) hasRest(final bool) bool { return s.open || s.hasText(final) }

func (s *splitter) hasText(final bool) bool {
	raw := s.buf[s.r:s.w]
	return len(raw) > 0 && (final || incomplete(raw) < len(raw))
}

// skip continues at a higher offset, because the bytes in between are gone. Bytes in space
// count from there.
func (s *splitter) skip(to int64) {
	s.r, s.seen = s.w, 0
	s.next = to
	s.close()
}

// take makes a piece of raw, or of as much of it as the message has room for. all says that
// no more bytes belong to the last character.
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

// cut returns the text of the first n bytes of raw. full reports that the message has no
// room for the next character.
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

// incomplete returns how many bytes at the end of p are the start of a character that is
// not complete.
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
