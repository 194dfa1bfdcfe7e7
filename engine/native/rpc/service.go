package rpc

import "github.com/boxd/boxd/engine"

// OneBoxOption is the option of boxd-init launcher by which a client says whether it will create one box only:
// "true" or "false". The launcher then prepares nothing for a second one.
const OneBoxOption = "--one-box"

// A launcher that runs as a service (boxd-init launcher --service) also understands
// these requests. It also speaks first, on every connection:
//
//	client                                       launcher
//	  | <- Hello    version, protocol, pid           |   or Error, and the end
//	  | -- List ---------------------------------> |
//	  | <- Reply    ids                              |
//	  | -- Adopt    box ---------------------------> |
//	  | <- Reply    as of Create, managed slots      |
//	  | -- Open     box, slots --------------------> |
//	  | <- Reply    as of Slots                      |
//	  | -- Keep     box, slot, key ----------------> |
//	  | <- Reply                                     |
//	  | -- Connect, Usage, Ping, Stop -------------> |
//	  | <- Reply                                     |
//	  | <- Event    box, kind, count                 |   any time
const (
	TypeAdopt = 73
	TypeList  = 74
	TypeStop  = 75
	TypeEvent = 76
	TypePing  = 77
	TypeUsage = 78
	TypeKeep  = 79
	TypeOpen  = 80
)

// Adopted answers Adopt. Slots that were not marked with Keep have been killed and removed.
// The descriptors are those of Created, without a first slot.
type Adopted struct {
	Created
	Spec engine.Spec // with all changes since the creation
	// Paused: its commands stand still.
	Paused bool `json:",omitempty"`
	// Managed are the slots of managed processes by name, with their keys: those
	// that Keep was called for and that were not given back.
	Managed map[string]string
}

// List answers List: every box of the service, including those being built.
type List struct{ IDs []string }

// Keep assigns a slot to the managed process Key, before anything runs in it, so that Adopt
// leaves it alone until it is released. Memory is a memory limit of the slot in bytes, 0
// for none; with a limit the request is for launchers of both kinds.
type Keep struct {
	ID     string
	Slot   string
	Key    string
	Memory int64 `json:",omitempty"`
}

// Open asks for the descriptors of existing slots, at most MaxSlots. The reply has the form
// of the reply to Slots, and leaves out slots that do not exist.
type Open struct {
	ID    string
	Slots []string
}

// Stop ends the launcher once it has answered. With RemoveBoxes the boxes are
// removed first; otherwise they stay, and the next launcher adopts them.
type Stop struct{ RemoveBoxes bool }

// Event reports a limit that the commands of a box ran into: Count times since the box
// was made or, if the kernel does not keep count, since the launcher was started.
type Event struct {
	Box   string
	Kind  engine.EventKind
	Count int64
}
