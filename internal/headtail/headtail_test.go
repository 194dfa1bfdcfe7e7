package headtail

import (
	"bytes"
	"math/rand/v2"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestBuffer(t *testing.T) {
	for _, c := range []struct {
		limit   int64
		writes  []string
		want    string
		missing Missing // Bytes 0: none
	}{
		{10, nil, "", Missing{}},
		{10, []string{"0123456789"}, "0123456789", Missing{}},
		{10, []string{"01234", "56789"}, "0123456789", Missing{}},
		{10, []string{"0123456789", "a"}, "012345789a", Missing{6, 1}},
		{10, []string{"0123456789abc"}, "0123459abc", Missing{6, 3}},
		{10, []string{"0123456789abcdefghijklmnop"}, "012345mnop", Missing{6, 16}},
		{10, strings.Split("0123456789abcdefghijklmnop", ""), "012345mnop", Missing{6, 16}},
		{0, []string{"abc"}, "", Missing{0, 3}},
		{-1, []string{"abc"}, "", Missing{0, 3}},
		{1, []string{"abc"}, "c", Missing{0, 2}},
		// The gap would split characters on both sides.
		{10, []string{"01234é", "xxxxxxxx", "éabc"}, "01234abc", Missing{5, 12}},
		// What is not UTF-8 anyway stays as it is.
		{10, []string{"\xff1234é", "xxxxxxxx", "éabc"}, "\xff1234\xc3\xa9abc", Missing{6, 10}},
		// Four bytes that continue a character are no end of one.
		{8, []string{"0\xf3\xaf\x80", "\xf3\x9a\xa2\xaf\x80"}, "0\xf3\xaf\x80\x9a\xa2\xaf\x80", Missing{4, 1}},
	} {
		b := Buffer{Limit: c.limit}
		for _, w := range c.writes {
			if n, err := b.Write([]byte(w)); n != len(w) || err != nil {
				t.Errorf("Write(%q) = %d, %v", w, n, err)
			}
		}
		got, missing := b.Bytes()
		if string(got) != c.want || (missing == nil) != (c.missing.Bytes == 0) || missing != nil && *missing != c.missing {
			t.Errorf("limit %d, %q: kept %q without %v, want %q without %v", c.limit, c.writes, got, missing, c.want, c.missing)
		}
	}
}

// Whatever is written in whatever pieces, head and tail are those of the stream, and the gap is
// what lies between them.
func FuzzBuffer(f *testing.F) {
	f.Add([]byte("one, two, three, four"), int64(10), uint64(1))
	f.Add([]byte("ééééééé"), int64(5), uint64(2))
	f.Fuzz(func(t *testing.T, stream []byte, limit int64, seed uint64) {
		if limit > 1<<16 {
			return
		}
		b := Buffer{Limit: limit}
		random := rand.New(rand.NewPCG(seed, 0))
		for rest := stream; len(rest) > 0; {
			n := 1 + random.IntN(len(rest))
			b.Write(rest[:n])
			rest = rest[n:]
		}
		got, gap := b.Bytes()
		if gap == nil {
			if !bytes.Equal(got, stream) {
				t.Fatalf("%q became %q", stream, got)
			}
			return
		}
		if int64(len(got))+gap.Bytes != int64(len(stream)) || int64(len(got)) > max(0, limit) || gap.Bytes < 1 {
			t.Fatalf("%d bytes with a limit of %d: %d kept, gap %+v", len(stream), limit, len(got), gap)
		}
		if !bytes.Equal(got[:gap.Offset], stream[:gap.Offset]) || !bytes.Equal(got[gap.Offset:], stream[gap.Offset+gap.Bytes:]) {
			t.Fatalf("%q became %q without %+v", stream, got, gap)
		}
		if lost := max(0, limit) - int64(len(got)); lost > 2*(utf8.UTFMax-1) || utf8.Valid(stream) && !utf8.Valid(got) {
			t.Fatalf("%q became %q, which is %d bytes below the limit", stream, got, lost)
		}
	})
}
