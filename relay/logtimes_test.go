package relay

import (
	"bytes"
	"context"
	"testing"
	"time"
)

func TestLogsByTimeAndLine(t *testing.T) {
	out := newRing(64)
	out.Write([]byte("a\nbb\nccc\ndd"))
	base := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	src := Source{Stdout: out, Done: make(chan struct{}), Times: func(Stream) []Mark {
		return []Mark{{0, base}, {5, base.Add(time.Second)}, {9, base.Add(time.Minute)}}
	}}
	h := NewHub(src, Options{})
	defer h.Close()
	lines := func(n int64) *int64 { return &n }
	for _, c := range []struct {
		name string
		o    LogOptions
		want string
	}{
		{"all", LogOptions{}, "a\nbb\nccc\ndd"},
		{"since the first", LogOptions{Since: base}, "a\nbb\nccc\ndd"},
		{"long before", LogOptions{Since: base.Add(-time.Hour)}, "a\nbb\nccc\ndd"},
		{"a bit later", LogOptions{Since: base.Add(1)}, "ccc\ndd"},
		{"the last", LogOptions{Since: base.Add(time.Minute)}, "dd"},
		{"after all", LogOptions{Since: base.Add(time.Hour)}, ""},
		{"no line", LogOptions{Tail: lines(0)}, ""},
		{"one line", LogOptions{Tail: lines(1)}, "dd"},
		{"two lines", LogOptions{Tail: lines(2)}, "ccc\ndd"},
		{"as many as there are", LogOptions{Tail: lines(4)}, "a\nbb\nccc\ndd"},
		{"more than there are", LogOptions{Tail: lines(99)}, "a\nbb\nccc\ndd"},
		{"both", LogOptions{Tail: lines(3), Since: base.Add(time.Minute)}, "dd"},
		{"offset within", LogOptions{Tail: lines(3), Offset: 6}, "cc\ndd"},
		{"times", LogOptions{Timestamps: true, Tail: lines(3)},
			"2026-11-22T12:00:00.000Z bb\n2026-11-22T12:00:01.000Z ccc\n2026-11-22T12:01:00.000Z dd"},
	} {
		var b bytes.Buffer
		if err := h.Logs(context.Background(), &b, c.o); err != nil || b.String() != c.want {
			t.Errorf("%s: %q, %v, want %q", c.name, b.String(), err, c.want)
		}
	}
	if err := NewHub(Source{Stdout: out, Done: src.Done}, Options{}).Logs(context.Background(), &bytes.Buffer{}, LogOptions{Timestamps: true}); err == nil {
		t.Error("times of an output that has none")
	}
}

// A line that arrives in pieces has one time. After the end of a line at the end of a read,
// another line starts.
func TestStamper(t *testing.T) {
	s := &stamper{times: func() []Mark { return []Mark{{4, time.Unix(0, 0)}} }}
	got := ""
	off := int64(0)
	for _, piece := range []string{"a", "b", "c\n", "d\n", "\n", "e"} {
		got += string(s.stamp([]byte(piece), off))
		off += int64(len(piece))
	}
	const stamp = "1970-01-01T00:00:00.000Z "
	if want := "- abc\n" + stamp + "d\n" + stamp + "\n" + stamp + "e"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// The last lines span several reads, and the oldest bytes are overwritten.
func TestTailOfMuch(t *testing.T) {
	out := newRing(200 << 10)
	out.drop = true
	line := append(bytes.Repeat([]byte{'x'}, 99), '\n')
	for range 3000 {
		out.Write(line)
	}
	oldest, end := out.Bounds()
	for n, want := range map[int64]int64{1: end - 100, 1500: end - 150000, 99999: oldest} {
		if got, err := lastLines(context.Background(), out, oldest, end, n); err != nil || got != want {
			t.Errorf("%d lines: %d, %v, want %d", n, got, err, want)
		}
	}
	// By then, half of the bytes are gone.
	if got, err := lastLines(context.Background(), out, 0, end, 99999); err != nil || got != oldest {
		t.Errorf("from the start: %d, %v, want %d", got, err, oldest)
	}
}
