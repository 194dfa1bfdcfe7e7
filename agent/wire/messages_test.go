package wire

import (
	"errors"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

// message is the common interface of all messages.
type message interface {
	Marshal() []byte
	Unmarshal([]byte) error
}

// messages returns one message of each type, with every field set.
func messages() map[string]message {
	return map[string]message{
		"init": &InitMsg{Version: "v1-2", Lifeline: true, Linger: 50, Filter: []byte("12345678"), HomeTasks: 3, Spawners: 2, Unpacks: true},
		"spawn": &SpawnMsg{
			Args: []string{"sh", "-c", ""}, Env: []string{"A=1"}, Dir: "/workspace", MakeDir: true, TTY: true, Self: true,
			UID: 1000, GID: 65534, Rlimits: []Rlimit{{7, 1024, 4096}, {1, 1 << 40, 1 << 41}}, Tasks: 2,
		},
		"failed": &FailedMsg{Step: StepExec, Errno: syscall.ENOENT},
		"signal": &SignalMsg{Signal: 15},
		"exited": &ExitedMsg{Status: 0x8b},

		"zygote": &ZygoteMsg{Preload: []string{"json"}, Spawn: SpawnMsg{Args: []string{"python3"}, Env: []string{}, Dir: "/", UID: 1, Tasks: 1}},
		"warm":   &WarmMsg{Why: "no module"},
		"spare":  &SpareMsg{Zygote: 7, Tasks: 2},

		"launch drop": &LaunchMsg{Key: "k", Ring: MinRing, DropStderr: true, Spawn: SpawnMsg{Args: []string{"a"}, Env: []string{}}},
		"launch both": &LaunchMsg{Key: "k", Ring: 1 << 20, StderrRing: MinRing, DropStderr: true, Spawn: SpawnMsg{Args: []string{"a"}, Env: []string{}}},
		"launch":      &LaunchMsg{Key: "k-1", Ring: 1 << 20, DropOldest: true, Spawn: SpawnMsg{Args: []string{"a"}, Env: []string{}, TTY: true}},
		"forget":      &ForgetMsg{Number: 9},
		"managed": &ManagedMsg{
			Number: 3, Key: "k", PID: 7, TTY: true, DropOldest: true, Ring: MinRing, Age: 1 << 40,
			Accepted: 100, Queued: 200, Input: InputBroken, Released: [2]uint64{1, 2}, Ended: true, Status: 256, Heads: [2]uint64{3, 4},
		},
		"listed":      &ListedMsg{Count: MaxManaged},
		"watch":       &WatchMsg{Stream: Stderr, Offset: 1 << 50},
		"head":        &HeadMsg{Stream: Stderr, Head: 5, Ended: true},
		"release":     &ReleaseMsg{Stream: Stderr, Offset: 6},
		"input":       &InputMsg{Offset: 7, Data: []byte("abc")},
		"close input": &CloseInputMsg{Offset: 8},
		"accepted":    &AcceptedMsg{Offset: 9, State: InputClosed},
		"ended":       &EndedMsg{Status: 9, Wall: 10, Heads: [2]uint64{11, 12}},
		"resize":      &ResizeMsg{Rows: 24, Cols: 80},
	}
}

func fresh(m message) message {
	return reflect.New(reflect.TypeOf(m).Elem()).Interface().(message)
}

func TestRoundTrip(t *testing.T) {
	for name, m := range messages() {
		got := fresh(m)
		if err := got.Unmarshal(m.Marshal()); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if !reflect.DeepEqual(got, m) {
			t.Errorf("%s: got %+v, want %+v", name, got, m)
		}
	}
}

func TestTruncatedAndSpareBytes(t *testing.T) {
	for name, m := range messages() {
		body := m.Marshal()
		for n := range body {
			if err := fresh(m).Unmarshal(body[:n]); !errors.Is(err, ErrProtocol) {
				t.Errorf("%s cut to %d bytes: %v", name, n, err)
			}
		}
		if err := fresh(m).Unmarshal(append(body, 0)); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s with a spare byte: %v", name, err)
		}
	}
}

func TestBadSpawn(t *testing.T) {
	for name, m := range map[string]SpawnMsg{
		"no arguments":     {Dir: "/"},
		"uid too high":     {Args: []string{"a"}, UID: 1 << 31},
		"too many rlimits": {Args: []string{"a"}, Rlimits: make([]Rlimit, MaxRlimits+1)},
	} {
		if err := new(SpawnMsg).Unmarshal(m.Marshal()); !errors.Is(err, ErrProtocol) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A count that the body cannot hold must be refused before anything is allocated
// for it.
func TestHugeCount(t *testing.T) {
	body := []byte{0xff, 0xff, 0xff, 0x7f}
	if n := testing.AllocsPerRun(10, func() { _ = new(SpawnMsg).Unmarshal(body) }); n > 8 {
		t.Errorf("%v allocations", n)
	}
}

func TestFailedIsPrintable(t *testing.T) {
	m := FailedMsg{Step: "\x1b[31m\n" + strings.Repeat("x", 500), Errno: 1}
	var got FailedMsg
	if err := got.Unmarshal(m.Marshal()); err != nil {
		t.Fatal(err)
	}
	if len(got.Step) > 200 || strings.ContainsAny(got.Step, "\x1b\n") {
		t.Errorf("step %q", got.Step)
	}
}

// FuzzMessages feeds every decoder. A decoder may refuse the bytes; if it accepts them, the
// message must encode to the same bytes again.
func FuzzMessages(f *testing.F) {
	for _, m := range messages() {
		f.Add(m.Marshal())
	}
	both := (&LaunchMsg{Key: "k", Ring: MinRing, DropStderr: true, Spawn: SpawnMsg{Args: []string{"a"}}}).Marshal()
	both[4+1+8] |= dropOldest // two answers to one question
	f.Add(both)
	f.Fuzz(func(t *testing.T, body []byte) {
		for name, m := range messages() {
			got := fresh(m)
			if got.Unmarshal(body) != nil || name == "failed" { // Failed is cleaned on the way
				continue
			}
			if again := got.Marshal(); string(again) != string(body) {
				t.Errorf("%s: %x became %x", name, body, again)
			}
		}
	})
}
