package native

import (
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/engine"
)

// Times implements engine.TimedOutput. It returns nil if it cannot read the marks: the agent
// may be of a version without marks, and may write anything there. Nothing else relies on
// them.
func (o *output) Times() []engine.OutputTime {
	at := wire.RingHeader + o.size
	b := make([]byte, wire.RingMarksSize)
	for range ringTries {
		if _, err := o.file.ReadAt(b[:wire.RingMarkSize], at); err != nil {
			return nil
		}
		before, count, ok := wire.RingMarksHead(b)
		if !ok {
			continue
		}
		list := b[wire.RingMarkSize:][:count*wire.RingMarkSize]
		if _, err := o.file.ReadAt(list, at+wire.RingMarkSize); err != nil {
			return nil
		}
		if _, err := o.file.ReadAt(b[:wire.RingMarkSize], at); err != nil {
			return nil
		}
		if after, _, ok := wire.RingMarksHead(b); !ok || after != before {
			continue
		}
		marks := wire.ParseRingMarks(list)
		times := make([]engine.OutputTime, len(marks))
		for i, m := range marks {
			times[i] = engine.OutputTime{Offset: int64(m.Offset), Time: time.Unix(0, m.Time)}
		}
		return times
	}
	return nil
}
