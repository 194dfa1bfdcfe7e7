package linerelay

import (
	"bytes"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
)

// wanted returns the messages of a stream by the letter of the rules, for a stream that is
// available at once.
func wanted(stream []byte) (messages []string) {
	var m []byte
	for len(stream) > 0 {
		r, size := utf8.DecodeRune(stream)
		if len(m)+utf8.RuneLen(r) > maxMessage {
			messages, m = append(messages, string(m)), nil
		}
		m, stream = utf8.AppendRune(m, r), stream[size:]
		if r == '\n' || len(m) == maxMessage {
			messages, m = append(messages, string(m)), nil
		}
	}
	if len(m) > 0 {
		messages = append(messages, string(m))
	}
	return messages
}

// assembler is the peer: it assembles the messages and checks each piece.
type assembler struct {
	t        testing.TB
	s        *splitter
	messages []string
	open     bool
	next     []byte
	done     int64
	parts    int
}

func (a *assembler) add(p piece) {
	a.t.Helper()
	if p.first == a.open {
		a.t.Fatalf("piece %d is first: %v, after one that is last: %v", a.parts, p.first, !a.open)
	}
	if !utf8.Valid(p.text) {
		a.t.Fatalf("piece %d is no UTF-8: %q", a.parts, p.text)
	}
	a.parts++
	a.next = append(a.next, p.text...)
	if len(a.next) > maxMessage || p.last && len(a.next) == 0 {
		a.t.Fatalf("message %d has %d bytes", len(a.messages), len(a.next))
	}
	if a.open = !p.last; p.last {
		a.messages, a.next = append(a.messages, string(a.next)), nil
	}
	done := a.s.done()
	if done < a.done || done > a.s.next {
		a.t.Fatalf("piece %d: done is %d after %d, in pieces is %d", a.parts, done, a.done, a.s.next)
	}
	a.done = done
}

func (a *assembler) lines() {
	a.t.Helper()
	for p, ok := a.s.line(); ok; p, ok = a.s.line() {
		a.add(p)
	}
}

func (a *assembler) rest(final bool) {
	a.t.Helper()
	for p, ok := a.s.rest(final); ok; p, ok = a.s.rest(final) {
		a.add(p)
	}
	if a.open {
		a.t.Fatal("a message is under way behind the rest")
	}
}

// split cuts stream; chunk returns how much each read gets. After a read without bytes it
// takes the rest, as if nothing had arrived for a while.
func split(t testing.TB, stream []byte, chunk func() int) *assembler {
	t.Helper()
	s := newSplitter(7)
	defer s.release()
	a := &assembler{t: t, s: s, done: 7}
	for left := stream; len(left) > 0; {
		space := s.space()
		if len(space) < smallBuffer/2 {
			t.Fatalf("space for %d bytes", len(space))
		}
		n := min(chunk(), len(space), len(left))
		if n <= 0 {
			a.rest(false)
			if tail := s.w - s.r; tail >= utf8.UTFMax {
				t.Fatalf("%d bytes are kept behind a rest", tail)
			}
			n = min(1, len(left))
			space = s.space()
		}
		s.add(copy(space, left[:n]))
		left = left[n:]
		a.lines()
		if pending := s.w - s.r; pending >= partSize {
			t.Fatalf("%d bytes are kept", pending)
		}
	}
	a.rest(true)
	if want := int64(7 + len(stream)); a.s.end() != want || a.s.done() != want {
		t.Fatalf("end %d, done %d, want %d", a.s.end(), a.s.done(), want)
	}
	return a
}

// check compares messages with want, without printing megabytes.
func (a *assembler) check(want []string) {
	a.t.Helper()
	if slices.Equal(a.messages, want) {
		return
	}
	for i := range min(len(a.messages), len(want)) {
		if a.messages[i] != want[i] {
			a.t.Fatalf("message %d is %.200q (%d bytes), want %.200q (%d bytes)", i, a.messages[i], len(a.messages[i]), want[i], len(want[i]))
		}
	}
	a.t.Fatalf("%d messages, want %d", len(a.messages), len(want))
}

func whole() int { return 1 << 30 }

func TestLines(t *testing.T) {
	long := strings.Repeat("x", maxMessage)
	for _, c := range []struct {
		name, stream string
		want         []string
	}{
		{"nothing", "", nil},
		{"lines", "a\nbc\n", []string{"a\n", "bc\n"}},
		{"empty lines", "\n\n", []string{"\n", "\n"}},
		{"no newline at the end", "a\nb", []string{"a\n", "b"}},
		{"CR and NUL are bytes", "a\r\n\x00\rb\n", []string{"a\r\n", "\x00\rb\n"}},
		{"invalid", "a\xff\xfeb\n", []string{"a\ufffd\ufffdb\n"}},
		{"cut by the newline", "\xe2\x82\n\xac\n", []string{"\ufffd\ufffd\n", "\ufffd\n"}},
		{"cut by the end", "é€\xf0\x9f", []string{"é€\ufffd\ufffd"}},
		{"surrogate", "\xed\xa0\x80", []string{"\ufffd\ufffd\ufffd"}},
		{"the longest line", long[1:] + "\nb\n", []string{long[1:] + "\n", "b\n"}},
		{"one byte too long", long + "\nb\n", []string{long, "\n", "b\n"}},
		{"character at the limit", long[2:] + "€\nb\n", []string{long[2:], "€\n", "b\n"}},
		{"character up to the limit", long[3:] + "€\nb\n", []string{long[3:] + "€", "\n", "b\n"}},
		{"replaced at the limit", long[2:] + "\xff\nb\n", []string{long[2:], "\ufffd\n", "b\n"}},
		{"very long", long + long + "abc", []string{long, long, "abc"}},
		{"grows threefold", strings.Repeat("\x80", maxMessage), []string{
			strings.Repeat("\ufffd", maxMessage/3), strings.Repeat("\ufffd", maxMessage/3), strings.Repeat("\ufffd", maxMessage/3), "\ufffd"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := wanted([]byte(c.stream)); !slices.Equal(got, c.want) {
				t.Fatal("the test's own rules say something else")
			}
			split(t, []byte(c.stream), whole).check(c.want)
			for _, size := range []int{1, 2, 3, 5, 4095, 4096, 4097, partSize - 1, partSize, partSize + 1} {
				if size < 100 && len(c.stream) > maxMessage/2 && (size != 5 || testing.Short()) {
					continue // the long ones take a while
				}
				split(t, []byte(c.stream), func() int { return size }).check(c.want)
			}
		})
	}
}

// TestRest: an incomplete line is returned as it is, except for an incomplete character.
func TestRest(t *testing.T) {
	s := newSplitter(0)
	a := &assembler{t: t, s: s}
	feed := func(text string) {
		s.add(copy(s.space(), text))
		a.lines()
	}
	feed("> é\xe2\x82")
	if !s.hasRest(false) || s.done() != 0 {
		t.Error("there is no rest")
	}
	a.rest(false)
	if s.hasRest(false) || s.done() != 4 {
		t.Errorf("rest without a whole character, done %d", s.done())
	}
	feed("\xac\n\xe2")
	a.rest(false)
	feed("x")
	a.rest(false)
	feed("\xf0\x9f")
	a.rest(true)
	a.check([]string{"> é", "€\n", "\ufffdx", "\ufffd\ufffd"})
}

// TestParts: a long line is sent in parts, so that no one has to hold it. Its bytes count as
// sent once it is complete, or too long to be kept.
func TestParts(t *testing.T) {
	s := newSplitter(0)
	a := &assembler{t: t, s: s}
	feed := func(n int) {
		for n > 0 {
			space := s.space()
			m := min(n, len(space))
			copy(space, bytes.Repeat([]byte("x"), m))
			s.add(m)
			a.lines()
			n -= m
		}
	}
	feed(keepPart - 10)
	if a.parts < 3 || s.done() != 0 {
		t.Errorf("%d parts, done %d", a.parts, s.done())
	}
	feed(partSize)
	if s.done() < keepPart {
		t.Errorf("done %d, want more than %d", s.done(), keepPart)
	}
	a.rest(false)
	if want := int64(keepPart - 10 + partSize); s.done() != want || len(a.messages) != 1 || len(a.messages[0]) != int(want) {
		t.Errorf("done %d, %d messages, want %d in one", s.done(), len(a.messages), want)
	}
	feed(10)
	s.skip(s.end() + 5)
	s.add(copy(s.space(), "y\n"))
	a.lines()
	if last := a.messages[len(a.messages)-1]; last != "y\n" {
		t.Errorf("behind a gap: %q", last)
	}
}

// TestBuffer: an idle stream has a small buffer, even after a flood.
func TestBuffer(t *testing.T) {
	s := newSplitter(0)
	for _, step := range []struct{ read, size int }{
		{10, smallBuffer}, {10, smallBuffer}, {smallBuffer, smallBuffer}, {largeBuffer, largeBuffer}, {largeBuffer, largeBuffer},
		{10, largeBuffer}, {10, smallBuffer}, {10, smallBuffer},
	} {
		space := s.space()
		n := min(step.read, len(space))
		copy(space, bytes.Repeat([]byte("xxxxxxxxx\n"), n/10+1)[:n])
		s.add(n)
		for _, ok := s.line(); ok; _, ok = s.line() {
		}
		if len(s.buf) != step.size {
			t.Errorf("read %d: buffer of %d bytes, want %d", n, len(s.buf), step.size)
		}
	}
}

func FuzzSplitter(f *testing.F) {
	for _, seed := range []string{"a\nb", "é\xe2\x82\xac\n", "\xff\n\xf0\x9f\x98", "{}\r\n\x00", "\n\n\n"} {
		for _, pauses := range []bool{false, true} {
			f.Add([]byte(seed), uint64(1), uint16(3), pauses)
		}
	}
	f.Add(bytes.Repeat([]byte("é\xffabc€"), 30), uint64(2), uint16(30000), false)
	f.Fuzz(func(t *testing.T, unit []byte, seed uint64, repeat uint16, pauses bool) {
		stream := bytes.Repeat(unit, min(int(repeat), (3<<20)/max(len(unit), 1)))
		rng := rand.New(rand.NewPCG(seed, 0))
		size := 1 << rng.IntN(18)
		if len(stream)/size > 1<<16 {
			size = 1 << 10
		}
		a := split(t, stream, func() int {
			if pauses && rng.IntN(8) == 0 {
				return 0
			}
			return 1 + rng.IntN(size)
		})
		want := wanted(stream)
		if !pauses {
			a.check(want)
			return
		}
		// A pause ends a message, and must have no other effect.
		if strings.Join(a.messages, "") != strings.Join(want, "") {
			t.Fatalf("%d messages have other text than the stream", len(a.messages))
		}
		for _, m := range a.messages {
			if i := strings.IndexByte(m, '\n'); i >= 0 && i != len(m)-1 {
				t.Fatalf("more than a line in %.200q", m)
			}
		}
	})
}
