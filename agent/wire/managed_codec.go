package wire

import (
	"math"
	"math/bits"
)

// Marshal returns the body of a Launch frame.
func (m *LaunchMsg) Marshal() []byte {
	var e encoder
	e.bytes([]byte(m.Key))
	e.u64(m.Ring)
	if m.StderrRing == 0 {
		e.b = append(e.b, m.drop())
	} else {
		e.b = append(e.b, m.drop()|ownStderr)
		e.u64(m.StderrRing)
	}
	e.b = append(e.b, m.Spawn.Marshal()...)
	return e.b
}

// Unmarshal parses the body of a Launch frame.
func (m *LaunchMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Key = d.key()
	m.Ring = d.ring()
	flags := d.upToByte(dropStderr | ownStderr)
	drop := flags &^ ownStderr
	m.DropOldest, m.DropStderr = drop == dropOldest, drop == dropStderr
	d.bad = d.bad || drop > dropStderr
	if flags&ownStderr != 0 {
		m.StderrRing = d.ring()
	}
	if d.bad {
		return d.done("launch")
	}
	return m.Spawn.Unmarshal(d.b)
}

// Flags of a Launch.
const (
	dropOldest = 1 // overwrite full rings of both streams
	dropStderr = 2 // overwrite a full ring of stderr
	ownStderr  = 4 // the size of the ring of stderr follows
)

func (m *LaunchMsg) drop() byte {
	switch {
	case m.DropOldest:
		return dropOldest
	case m.DropStderr:
		return dropStderr
	}
	return 0
}

// ValidKey reports whether key can name a managed process.
func ValidKey(key string) bool {
	if key == "" || len(key) > MaxKey {
		return false
	}
	for _, c := range []byte(key) {
		if c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

func (d *decoder) key() string {
	key := string(d.bytes())
	if !ValidKey(key) {
		d.bad = true
	}
	return key
}

func (d *decoder) ring() uint64 {
	v := d.u64()
	if v < MinRing || v > MaxRing || bits.OnesCount64(v) != 1 {
		d.bad = true
	}
	return v
}

func (d *decoder) offset() uint64 {
	v := d.u64()
	if v > maxOffset {
		d.bad = true
	}
	return v
}

func (d *decoder) stream() uint32 { return d.upTo(Stderr) }

func (d *decoder) upTo(most uint32) uint32 {
	v := d.u32()
	if v > most {
		d.bad = true
	}
	return v
}

// Marshal returns the body of a Forget frame.
func (m *ForgetMsg) Marshal() []byte { return (&encoder{}).u32(m.Number).b }

// Unmarshal parses the body of a Forget frame.
func (m *ForgetMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Number = d.u32()
	return d.done("forget")
}

// Marshal returns the body of a Managed frame.
func (m *ManagedMsg) Marshal() []byte {
	var e encoder
	e.u32(m.Number)
	e.bytes([]byte(m.Key))
	e.u32(m.PID)
	e.bool(m.TTY)
	e.bool(m.DropOldest)
	e.u64(m.Ring)
	e.u64(m.Age)
	e.u64(m.Accepted)
	e.u64(m.Queued)
	e.u32(m.Input)
	e.u64(m.Released[0])
	e.u64(m.Released[1])
	e.bool(m.Ended)
	e.u32(m.Status)
	e.u64(m.Heads[0])
	e.u64(m.Heads[1])
	if m.StderrRing != 0 { // agents of older builds do not send it
		e.u64(m.StderrRing)
	}
	return e.b
}

// Unmarshal parses the body of a Managed frame.
func (m *ManagedMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Number = d.u32()
	m.Key = d.key()
	m.PID = d.upTo(math.MaxInt32)
	m.TTY, m.DropOldest = d.bool(), d.bool()
	m.Ring = d.ring()
	m.Age = d.offset()
	m.Accepted, m.Queued = d.offset(), d.offset()
	m.Input = d.upTo(InputBroken)
	m.Released = [2]uint64{d.offset(), d.offset()}
	m.Ended = d.bool()
	m.Status = d.u32()
	m.Heads = [2]uint64{d.offset(), d.offset()}
	if len(d.b) > 0 {
		m.StderrRing = d.ring()
	}
	if m.Queued < m.Accepted || m.Queued-m.Accepted > InputWindow {
		d.bad = true
	}
	return d.done("managed")
}

// Marshal returns the body of a Listed frame.
func (m *ListedMsg) Marshal() []byte { return (&encoder{}).u32(m.Count).b }

// Unmarshal parses the body of a Listed frame.
func (m *ListedMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Count = d.upTo(MaxManaged)
	return d.done("listed")
}

func marshalOffset(stream uint32, offset uint64) *encoder {
	e := new(encoder).u32(stream)
	e.u64(offset)
	return e
}

// Marshal returns the body of a Watch frame.
func (m *WatchMsg) Marshal() []byte { return marshalOffset(m.Stream, m.Offset).b }

// Unmarshal parses the body of a Watch frame.
func (m *WatchMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Stream, m.Offset = d.stream(), d.offset()
	return d.done("watch")
}

// Marshal returns the body of a Head frame.
func (m *HeadMsg) Marshal() []byte {
	e := marshalOffset(m.Stream, m.Head)
	e.bool(m.Ended)
	return e.b
}

// Unmarshal parses the body of a Head frame.
func (m *HeadMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Stream, m.Head, m.Ended = d.stream(), d.offset(), d.bool()
	return d.done("head")
}

// Marshal returns the body of a Release frame.
func (m *ReleaseMsg) Marshal() []byte { return marshalOffset(m.Stream, m.Offset).b }

// Unmarshal parses the body of a Release frame.
func (m *ReleaseMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Stream, m.Offset = d.stream(), d.offset()
	return d.done("release")
}

// Marshal returns the body of an Input frame.
func (m *InputMsg) Marshal() []byte {
	var e encoder
	e.u64(m.Offset)
	e.bytes(m.Data)
	return e.b
}

// Unmarshal parses the body of an Input frame. Data is a part of b.
func (m *InputMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Offset, m.Data = d.offset(), d.bytes()
	if len(m.Data) > InputWindow {
		d.bad = true
	}
	return d.done("input")
}

// Marshal returns the body of a CloseInput frame.
func (m *CloseInputMsg) Marshal() []byte {
	var e encoder
	e.u64(m.Offset)
	return e.b
}

// Unmarshal parses the body of a CloseInput frame.
func (m *CloseInputMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Offset = d.offset()
	return d.done("close input")
}

// Marshal returns the body of an Accepted frame.
func (m *AcceptedMsg) Marshal() []byte {
	var e encoder
	e.u64(m.Offset)
	return e.u32(m.State).b
}

// Unmarshal parses the body of an Accepted frame.
func (m *AcceptedMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Offset, m.State = d.offset(), d.upTo(InputBroken)
	return d.done("accepted")
}

// Marshal returns the body of an Ended frame.
func (m *EndedMsg) Marshal() []byte {
	e := new(encoder).u32(m.Status)
	e.u64(m.Wall)
	e.u64(m.Heads[0])
	e.u64(m.Heads[1])
	return e.b
}

// Unmarshal parses the body of an Ended frame.
func (m *EndedMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Status, m.Wall = d.u32(), d.offset()
	m.Heads = [2]uint64{d.offset(), d.offset()}
	return d.done("ended")
}

// Marshal returns the body of a Resize frame.
func (m *ResizeMsg) Marshal() []byte {
	return new(encoder).u32(uint32(m.Rows)).u32(uint32(m.Cols)).b
}

// Unmarshal parses the body of a Resize frame.
func (m *ResizeMsg) Unmarshal(b []byte) error {
	d := decoder{b: b}
	m.Rows, m.Cols = uint16(d.upTo(math.MaxUint16)), uint16(d.upTo(math.MaxUint16))
	return d.done("resize")
}
