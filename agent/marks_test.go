package agent

import (
	"testing"
	"time"

	"github.com/boxd/boxd/agent/wire"
)

// However many lines arrive, there is room for their marks. The newest marks are exact, all
// bytes that are kept have one, and bytes that are gone have none.
func TestMarks(t *testing.T) {
	mem := make([]byte, wire.RingMarksSize)
	var m marks
	start := time.Unix(1000, 0)
	const lines = 40000
	at := func(i int) (uint64, time.Time) { return uint64(10 * i), start.Add(time.Duration(i) * time.Second) }
	read := func() []wire.RingMark {
		_, count, ok := wire.RingMarksHead(mem)
		if !ok || count != m.count {
			t.Fatalf("%d marks, %v, want %d", count, ok, m.count)
		}
		list := wire.ParseRingMarks(mem[wire.RingMarkSize:][:count*wire.RingMarkSize])
		if len(list) != count {
			t.Fatalf("only %d of %d marks make sense", len(list), count)
		}
		return list
	}
	for i := range lines {
		offset, now := at(i)
		m.note(mem, offset, 0, now)
	}
	list := read()
	if list[0].Offset != 0 || len(list) < wire.RingMarks/2 {
		t.Errorf("%d marks from %d on", len(list), list[0].Offset)
	}
	for k := 1; k <= 1000; k++ {
		offset, now := at(lines - k)
		if got := list[len(list)-k]; got.Offset != offset || got.Time != now.UnixNano() {
			t.Fatalf("mark %d from the end: %+v, want %d", k, got, offset)
		}
	}
	// The ring wraps around: the marks of overwritten bytes make room.
	const floor = 10*lines - 5
	for i := lines; i < lines+wire.RingMarks; i++ {
		offset, now := at(i)
		m.note(mem, offset, floor, now)
	}
	if list = read(); list[0].Offset != 10*(lines-1) || len(list) < wire.RingMarks/2 {
		t.Errorf("%d marks from %d on, want them from the byte at %d on", len(list), list[0].Offset, floor)
	}
	// Bytes that arrive soon after others, or while the clock is set back, count as arrived with
	// them.
	before := m.count
	offset, now := at(lines + wire.RingMarks)
	m.note(mem, offset, floor, now.Add(-time.Hour))
	m.note(mem, offset, floor, time.Unix(0, m.last).Add(markPause-1))
	if m.count != before {
		t.Errorf("%d marks, want %d", m.count, before)
	}
}
