package wire

import (
	"math"
	"time"
)

// Frame types of the conversation about managed processes.
const (
	TypeLaunch        = 16 // client → agent: LaunchMsg
	TypeList          = 17 // client → agent: empty
	TypeForget        = 18 // client → agent: ForgetMsg
	TypeManaged       = 19 // agent → client: ManagedMsg
	TypeListed        = 20 // agent → client: ListedMsg
	TypeForgotten     = 21 // agent → client: empty
	TypeWatch         = 22 // client → agent: WatchMsg
	TypeHead          = 23 // agent → client: HeadMsg
	TypeRelease       = 24 // client → agent: ReleaseMsg
	TypeInput         = 25 // client → agent: InputMsg
	TypeCloseInput    = 26 // client → agent: CloseInputMsg
	TypeAccepted      = 27 // agent → client: AcceptedMsg
	TypeEnded         = 28 // agent → client: EndedMsg
	TypeManagedSignal = 29 // client → agent: SignalMsg
	TypeResize        = 30 // client → agent: ResizeMsg
)

// Bounds of managed processes.
const (
	MaxManaged = 64 // processes of a box that have not been forgotten
	MaxKey     = 64 // bytes
	// MinRing and MaxRing bound the size of one ring in bytes. MaxRings bounds the size of all
	// rings of a box, for which cgroups leaves room in addition to the box's memory limit.
	MinRing  = 8 << 10
	MaxRing  = 64 << 20
	MaxRings = 192 << 20
	// InputWindow is how many bytes of input may be on their way to a process.
	InputWindow = 64 << 10
	// maxOffset of a stream is more than a process writes in its life.
	maxOffset = math.MaxInt64 / 2
	// OldKeys is how many keys of forgotten processes an agent still refuses.
	OldKeys = 4096
	// EndDelay is how long the outputs of a process that was reaped may take to
	// end by themselves.
	EndDelay = 2 * time.Second
)

// Steps of a launch that a FailedMsg names, besides those of starting a command.
const (
	StepKey   = "checking key"
	StepTable = "keeping managed process"
	StepRing  = "making output ring"
	StepFind  = "finding managed process"
)

// SpawnerName is the name of the agent's threads that start commands. Commands inherit many
// of their settings.
const SpawnerName = "spawner"

// Streams of a managed process. With a terminal there is Stdout only.
const (
	Stdout = 0
	Stderr = 1
)

// LaunchMsg starts a managed process. Its descriptors: the cgroup directory,
// Spawn.Tasks v1 tasks files, and with Spawn.TTY master and slave of a terminal.
type LaunchMsg struct {
	Key        string
	Ring       uint64 // size of each ring in bytes, a power of two
	StderrRing uint64 // size of the ring for stderr; 0: the same
	DropOldest bool
	DropStderr bool // has no effect with DropOldest
	Spawn      SpawnMsg
}

// RingOf returns the size of the ring of a stream.
func (m *LaunchMsg) RingOf(stream uint32) uint64 { return ringOf(stream, m.Ring, m.StderrRing) }

func ringOf(stream uint32, ring, stderr uint64) uint64 {
	if stream == Stderr && stderr != 0 {
		return stderr
	}
	return ring
}

// Drops reports whether a full ring of a stream is overwritten.
func (m *LaunchMsg) Drops(stream uint32) bool {
	return m.DropOldest || m.DropStderr && stream == Stderr
}

// LaunchFDs returns the number of descriptors of m.
func (m *LaunchMsg) LaunchFDs() int {
	if m.Spawn.TTY {
		return 1 + int(m.Spawn.Tasks) + 2
	}
	return 1 + int(m.Spawn.Tasks)
}

// ForgetMsg has the agent forget a process that has ended, with its rings.
type ForgetMsg struct{ Number uint32 }

// ManagedMsg describes the current state of a managed process. Its descriptors: the ring of
// each stream.
type ManagedMsg struct {
	Number     uint32 // the id of all frames about it
	Key        string
	PID        uint32
	TTY        bool
	DropOldest bool
	Ring       uint64
	StderrRing uint64 // as in LaunchMsg
	Age        uint64 // how long it has run, in ns
	Accepted   uint64 // offset up to which the process has got its stdin
	Queued     uint64 // offset up to which the agent has received it
	Input      uint32 // InputOpen …
	Released   [2]uint64
	Ended      bool
	Status     uint32    // as of wait4(2), if Ended
	Heads      [2]uint64 // of the streams, if Ended
}

// RingOf returns the size of the ring of a stream.
func (m *ManagedMsg) RingOf(stream uint32) uint64 { return ringOf(stream, m.Ring, m.StderrRing) }

// Streams returns the number of outputs.
func (m *ManagedMsg) Streams() int {
	if m.TTY {
		return 1
	}
	return 2
}

// ListedMsg follows the Managed frames that answer a List.
type ListedMsg struct{ Count uint32 }

// WatchMsg asks for a Head as soon as there is something after Offset or the stream has
// ended. It replaces an earlier Watch of the stream.
type WatchMsg struct {
	Stream uint32
	Offset uint64
}

// HeadMsg answers a Watch.
type HeadMsg struct {
	Stream uint32
	Head   uint64
	Ended  bool
}

// ReleaseMsg allows the bytes below Offset to be overwritten.
type ReleaseMsg struct {
	Stream uint32
	Offset uint64
}

// InputMsg carries input from Offset on. The agent skips bytes that it has received before.
type InputMsg struct {
	Offset uint64
	Data   []byte
}

// CloseInputMsg ends the input at Offset, which is where the last Input ended.
type CloseInputMsg struct{ Offset uint64 }

// States of the input of a managed process.
const (
	InputOpen   = 0
	InputClosed = 1
	InputBroken = 2 // no process reads it any more
)

// AcceptedMsg reports how far the process has got its input.
type AcceptedMsg struct {
	Offset uint64
	State  uint32
}

// EndedMsg reports that the process was reaped and its outputs have ended.
type EndedMsg struct {
	Status uint32 // as of wait4(2)
	Wall   uint64 // how long it ran, in ns
	Heads  [2]uint64
}

// ResizeMsg is the new size of a terminal in characters.
type ResizeMsg struct{ Rows, Cols uint16 }
