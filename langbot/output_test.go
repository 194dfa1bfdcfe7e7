package langbot

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/boxd/boxd/engine/enginetest"
	"github.com/boxd/boxd/langbot/protocol"
	"github.com/boxd/boxd/session"
)

// TestDecode compares decode with Python 3.11's bytes.decode(errors="replace").
func TestDecode(t *testing.T) {
	for in, want := range map[string]string{
		"": "", "abc": "abc", "é€😀": "é€😀", "\uFFFD": "\uFFFD",
		"\xff": "1", "\xc3": "1", "\xc3\xc3\xa9": "1é", "\xe2\x82": "1", "\xe2\x82\x41": "1A", "\xf0\x9f\x98": "1", "\xf0\x9f\x98x": "1x",
		"\xc0\x80": "11", "\xe0\x80\x80": "111", "\xed\xa0\x80": "111", "\xf4\x90\x80\x80": "1111", "\xf5\x80": "11",
		"\x80\x80": "11", "\xe2\xe2\x82\xac": "1€", "\xf0\x80\x80\x80": "1111", "\xf1\x80\xc3\xa9": "1é", "\xf8\x88": "11",
	} {
		if want = strings.ReplaceAll(want, "1", "\uFFFD"); decode([]byte(in)) != want {
			t.Errorf("% x: %q, want %q", in, decode([]byte(in)), want)
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{"", "é", "\xe2\x82", "\xf0\x9f\x98x\xff"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := decode(b)
		if !utf8.ValidString(s) {
			t.Errorf("% x: %q is no UTF-8", b, s)
		}
		if utf8.Valid(b) && s != string(b) {
			t.Errorf("% x: %q", b, s)
		}
		if n := utf8.RuneCountInString(s); n > len(b) || n < utf8.RuneCount(b)-3*strings.Count(s, "\uFFFD") {
			t.Errorf("% x: %d characters", b, n)
		}
		if last := lastChars(b, 3); !strings.HasSuffix(strings.TrimRightFunc(s, protocol.IsSpace), last) || utf8.RuneCountInString(last) > 3 {
			t.Errorf("% x: its end is %q", b, last)
		}
	})
}

func TestClipCounts(t *testing.T) {
	var c clip
	c.Write(make([]byte, clipAt-1))
	c.Write([]byte("abc"))
	c.Write([]byte("d"))
	if s := c.text(); c.lost != 3 || !strings.HasSuffix(s, "a\n... [raw output clipped at 1048576 bytes, 3 bytes discarded]") {
		t.Errorf("%d bytes lost, ends in %q", c.lost, s[len(s)-70:])
	}
	c = clip{}
	c.Write([]byte(strings.Repeat(" ", clipAt)))
	if s := c.text(); s != "" {
		t.Errorf("%q", s)
	}
}

func TestPreview(t *testing.T) {
	long := strings.Repeat("0123456789", 500)
	for in, want := range map[string]string{
		"": "", "ready\n": "ready", "a\n\n b \n\n": "a\n\n b", long: long[1000:],
		strings.Repeat("é", 4001) + "\n":  strings.Repeat("é", 4000),
		strings.Repeat("😀", 9000):         strings.Repeat("😀", 4000),
		long + strings.Repeat("\n", 4000): long[1000:],
	} {
		var o enginetest.Output
		o.Write([]byte(in))
		if got := lastChars(session.Tail(&o, previewBytes), previewChars); got != want {
			t.Errorf("%.20q…: %d bytes, want %d: %.40q", in, len(got), len(want), got)
		}
	}
	// A ring begins in the middle of a character.
	for keep := range int64(8) {
		o := enginetest.Output{Keep: 4000 + keep}
		o.Write([]byte(strings.Repeat("😀", 3000)))
		if got := lastChars(session.Tail(&o, previewBytes), previewChars); got != strings.Repeat("😀", int(4000+keep)/4) {
			t.Errorf("%d: %q…", keep, got[:8])
		}
	}
}
