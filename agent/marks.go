package agent

import (
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/boxd/boxd/agent/wire"
)

// markPause is the least time between two marks. Bytes that arrive sooner count as arrived
// with the last mark.
const markPause = time.Millisecond

// marks records when the bytes of a ring arrived, see wire.RingMark. Only the goroutine that
// fills the ring uses it.
type marks struct {
	last  int64 // time of the newest mark
	count int
}

// note marks the bytes from offset on as arrived at now. floor is the offset of the oldest
// byte that is kept, and mem the memory for marks.
func (m *marks) note(mem []byte, offset, floor uint64, now time.Time) {
	t := now.UnixNano()
	if m.count > 0 && t-m.last < int64(markPause) { // also if the clock was set back
		return
	}
	words := (*[wire.RingMarksSize / 8]uint64)(unsafe.Pointer(unsafe.SliceData(mem)))[:]
	list := words[wire.RingMarkSize/8:]
	if m.count == wire.RingMarks {
		atomic.AddUint64(&words[0], 1)
		m.count = thin(list, m.count, floor)
		atomic.StoreUint64(&words[1], uint64(m.count))
		atomic.AddUint64(&words[0], 1)
	}
	atomic.StoreUint64(&list[2*m.count], offset)
	atomic.StoreUint64(&list[2*m.count+1], uint64(t))
	m.count++
	m.last = t
	atomic.StoreUint64(&words[1], uint64(m.count))
}

// thin removes the marks of bytes below floor, and every other mark of the older half of the
// rest. It returns how many are left.
func thin(list []uint64, count int, floor uint64) int {
	first := 0
	for first+1 < count && list[2*(first+1)] <= floor {
		first++
	}
	older, kept := first+(count-first)/2, 0
	for i := first; i < count; i++ {
		if i < older && (i-first)%2 == 1 {
			continue
		}
		atomic.StoreUint64(&list[2*kept], list[2*i])
		atomic.StoreUint64(&list[2*kept+1], list[2*i+1])
		kept++
	}
	return kept
}
