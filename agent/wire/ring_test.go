package wire

import (
	"encoding/binary"
	"errors"
	"testing"
)

// record writes record i of a ring's header as the agent does.
func record(b []byte, i int, floor, head uint64) {
	b = b[i*RingRecord:]
	binary.LittleEndian.PutUint64(b, floor)
	binary.LittleEndian.PutUint64(b[8:], head)
	binary.LittleEndian.PutUint64(b[16:], RingCheck(floor, head))
}

func TestRingBounds(t *testing.T) {
	var b [RingRecords]byte
	want := func(what string, floor, head uint64) {
		t.Helper()
		if f, h, err := RingBounds(b[:]); f != floor || h != head || err != nil {
			t.Errorf("%s: %d to %d, %v; want %d to %d", what, f, h, err, floor, head)
		}
	}
	if _, _, err := RingBounds(b[:]); !errors.Is(err, ErrProtocol) {
		t.Errorf("nothing written: %v", err)
	}
	record(b[:], 0, 0, 0)
	want("one record", 0, 0)
	record(b[:], 1, 0, 10)
	want("the newer is the second", 0, 10)
	record(b[:], 0, 5, 10)
	want("the newer is the first", 5, 10)
	// Until the next record is complete, the last one counts.
	var next [RingRecords]byte
	record(next[:], 1, 1<<40, 1<<40+7)
	for n := range RingRecord - 8 {
		torn := b
		copy(torn[RingRecord:], next[RingRecord:][:n])
		f, h, err := RingBounds(torn[:])
		if whole := [2]uint64{f, h}; err != nil || whole != [2]uint64{5, 10} && whole != [2]uint64{1 << 40, 1<<40 + 7} {
			t.Errorf("%d bytes of the next record: %d to %d, %v", n, f, h, err)
		}
	}
}

func TestCheckRing(t *testing.T) {
	for name, c := range map[string]struct {
		lastFloor, lastHead, floor, head uint64
		ok                               bool
	}{
		"empty":             {0, 0, 0, 0, true},
		"full":              {0, 0, 7, 107, true},
		"overfull":          {0, 0, 0, 101, false},
		"floor above head":  {0, 0, 8, 7, false},
		"floor went back":   {5, 50, 4, 60, false},
		"head went back":    {5, 50, 5, 49, false},
		"beyond all bounds": {0, 0, 1 << 62, 1<<62 + 1, false},
	} {
		if err := CheckRing(100, c.lastFloor, c.lastHead, c.floor, c.head); (err == nil) != c.ok {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzRingBounds(f *testing.F) {
	var b [RingRecords]byte
	record(b[:], 0, 1, 2)
	f.Add(b[:])
	f.Fuzz(func(t *testing.T, b []byte) {
		floor, head, err := RingBounds(b)
		if err == nil && CheckRing(MinRing, 0, 0, floor, head) == nil && (floor > head || head-floor > MinRing) {
			t.Errorf("%d to %d", floor, head)
		}
	})
}

func TestValidKey(t *testing.T) {
	for key, ok := range map[string]bool{
		"a": true, "0-9": true, "-": true, string(make([]byte, MaxKey)): false,
		"": false, "A": false, "a.b": false, "a/b": false, "ä": false, "a b": false,
	} {
		if ValidKey(key) != ok {
			t.Errorf("%q: %v", key, !ok)
		}
	}
}

// Messages whose bounds are broken.
func TestBadManaged(t *testing.T) {
	good := messages()["managed"].(*ManagedMsg)
	for name, change := range map[string]func(m *ManagedMsg){
		"key":           func(m *ManagedMsg) { m.Key = "A" },
		"ring":          func(m *ManagedMsg) { m.Ring = MinRing + 1 },
		"large ring":    func(m *ManagedMsg) { m.Ring = 2 * MaxRing },
		"pid":           func(m *ManagedMsg) { m.PID = 1 << 31 },
		"input":         func(m *ManagedMsg) { m.Input = InputBroken + 1 },
		"queue":         func(m *ManagedMsg) { m.Queued = m.Accepted + InputWindow + 1 },
		"queue back":    func(m *ManagedMsg) { m.Queued = m.Accepted - 1 },
		"head":          func(m *ManagedMsg) { m.Heads[1] = 1 << 63 },
		"accepted":      func(m *ManagedMsg) { m.Accepted, m.Queued = 1<<63, 1<<63 },
		"age of an age": func(m *ManagedMsg) { m.Age = 1 << 63 },
	} {
		m := *good
		change(&m)
		if err := new(ManagedMsg).Unmarshal(m.Marshal()); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for name, m := range map[string]message{
		"stream":    &WatchMsg{Stream: 2},
		"head":      &HeadMsg{Stream: 2},
		"release":   &ReleaseMsg{Offset: 1 << 63},
		"input":     &InputMsg{Data: make([]byte, InputWindow+1)},
		"accepted":  &AcceptedMsg{State: 3},
		"listed":    &ListedMsg{Count: MaxManaged + 1},
		"ended":     &EndedMsg{Heads: [2]uint64{1 << 63, 0}},
		"no argv":   &LaunchMsg{Key: "a", Ring: MinRing},
		"tiny ring": &LaunchMsg{Key: "a", Ring: 4096, Spawn: SpawnMsg{Args: []string{"a"}}},
	} {
		if err := fresh(m).Unmarshal(m.Marshal()); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// The bytes of frames that two builds of boxd may exchange, because an agent can outlive the
// daemon that started it.
func TestGoldenManaged(t *testing.T) {
	for name, want := range map[string]string{
		"watch":       "\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x04\x00",
		"head":        "\x01\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00\x01",
		"release":     "\x01\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00\x00",
		"input":       "\x07\x00\x00\x00\x00\x00\x00\x00\x03\x00\x00\x00abc",
		"close input": "\x08\x00\x00\x00\x00\x00\x00\x00",
		"accepted":    "\x09\x00\x00\x00\x00\x00\x00\x00\x01\x00\x00\x00",
		"forget":      "\x09\x00\x00\x00",
		"listed":      "\x40\x00\x00\x00",
		"resize":      "\x18\x00\x00\x00\x50\x00\x00\x00",
		"ended": "\x09\x00\x00\x00\x0a\x00\x00\x00\x00\x00\x00\x00" +
			"\x0b\x00\x00\x00\x00\x00\x00\x00\x0c\x00\x00\x00\x00\x00\x00\x00",
		"managed": "\x03\x00\x00\x00\x01\x00\x00\x00k\x07\x00\x00\x00\x01\x01\x00\x20\x00\x00\x00\x00\x00\x00" +
			"\x00\x00\x00\x00\x00\x01\x00\x00" + "\x64\x00\x00\x00\x00\x00\x00\x00" + "\xc8\x00\x00\x00\x00\x00\x00\x00" +
			"\x02\x00\x00\x00" + "\x01\x00\x00\x00\x00\x00\x00\x00" + "\x02\x00\x00\x00\x00\x00\x00\x00" +
			"\x01\x00\x01\x00\x00" + "\x03\x00\x00\x00\x00\x00\x00\x00" + "\x04\x00\x00\x00\x00\x00\x00\x00",
	} {
		if got := string(messages()[name].Marshal()); got != want {
			t.Errorf("%s: %x, want %x", name, got, want)
		}
	}
}
