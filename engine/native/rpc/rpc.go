// Package rpc is the protocol between a caller's process (engine/native) and its
// launcher (engine/native/launcher): the requests, the replies, and their
// descriptors. The frames are those of package wire, the bodies are JSON.
//
//	client                                       launcher
//	  | <- Hello    version, protocol                |
//	  | -- Create   spec --------------------------> |
//	  | <- Reply    id, fds: agent, volumes…         |
//	  | -- Slots    box, count, used --------------> |
//	  | <- Reply    names, fds: dir, tasks…, stats…  |
//	  | -- Kill     box, slot, signal -------------> |
//	  | <- Reply                                     |
//	  | -- PTY, Update, Outside, Pause, Remove ----> |
//	  | -- Diag, Sockets --------------------------> |
//	  | <- Reply                                     |
//	  | -- Where    id of a request's frame -------> |
//	  | <- Reply    its current step                 |
//
// Requests are answered in any order. The launcher is root and its client may not
// be, so the launcher checks everything in a request again.
package rpc

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"time"

	"github.com/boxd/boxd/engine"
)

// Protocol is the version of this conversation.
const Protocol = 1

// Frame types.
const (
	TypeHello   = 64
	TypeReply   = 65
	TypeCreate  = 66
	TypeRemove  = 67
	TypeUpdate  = 68
	TypeSlots   = 69
	TypeKill    = 70
	TypePTY     = 71
	TypeConnect = 72
	TypeWhere   = 86
)

// Hello is the first frame of a launcher.
type Hello struct {
	Version  string // must equal the client's
	Protocol int
	// Error says why the launcher cannot serve; empty if it can.
	Error string
	// Busy: another client is connected. Error says so too.
	Busy bool `json:",omitempty"`
	// PID of a service, and the host user that may connect besides root.
	PID       int `json:",omitempty"`
	ClientUID int `json:",omitempty"`
	// DataDir of a service; empty if it keeps no volumes.
	DataDir string `json:",omitempty"`
	// MountRoots and Workspaces of a service, as on its command line.
	MountRoots []string `json:",omitempty"`
	Workspaces string   `json:",omitempty"`
	// Runtimes of a service, as on its command line.
	Runtimes Runtimes
	// Pool of a service, as on its command line.
	Pool int `json:",omitempty"`
}

// Create asks for a box.
type Create struct{ Spec engine.Spec }

// Created answers Create. Its descriptors: a connection to the agent, a pidfd of
// PID 1, one per volume for fstatfs, then those of the first slot if that has a name, then those of the
// slots in Spares.
type Created struct {
	ID       string
	PID      int
	HostUID  int // host id of user and group 0 of the box
	Volumes  []Volume
	First    Slot
	Degraded []string // limits that are not enforced although they were asked for
	// Warm are the zygotes with which a box of the pool comes, with spares that wait, and Spares the slots of
	// these, in their order. The connection is the one over which they were started.
	Warm   []Warm `json:",omitempty"`
	Spares []Slot `json:",omitempty"`
}

// Warm is a zygote that was started before its box was asked for.
type Warm struct {
	Zygote int    // index in the spec's
	ID     uint32 // by which the agent knows it
	Slot   string
	Spares []uint32
}

// MaxCarried is how many spares a box of the pool comes with at most, those of all its zygotes together: the descriptors
// of their slots must fit into the frame that hands the box over.
const MaxCarried = 4

// Volume is a part of the box that commands can fill.
type Volume struct {
	Path string // in the box
	Size int64  // bytes; engine.Unlimited where only the number of files is limited
	// Slack is how many bytes may be free although a write has failed.
	Slack int64 `json:",omitempty"`
}

// Box names a box: the body of Remove.
type Box struct{ ID string }

// MaxSlots is the largest Count of a Slots request: their descriptors must fit
// into one frame.
const MaxSlots = 8

// Slots asks for Count fresh slots, and gives used ones back. The launcher removes
// each used slot as soon as it is empty. A frame with id 0 has no reply.
type Slots struct {
	ID    string
	Count int
	Used  []string
	// Background are slots with processes that may keep running: an adoption spares
	// them.
	Background []string `json:",omitempty"`
	// Procs asks for a cgroup.procs file with each slot, so that the agent can move a process
	// that runs into it.
	Procs bool `json:",omitempty"`
}

// Slot is one element of the answer to Slots. Its descriptors: the cgroup
// directory, Tasks v1 tasks files, with Procs cgroup.procs of cgroup2, open for writing, then
// those of Stats that are true, in order.
type Slot struct {
	Name  string
	Tasks int
	Procs bool `json:",omitempty"`
	// Begun: the slot has its process already, so that the descriptors that start one are not there.
	Begun bool `json:",omitempty"`
	Stats []bool
	// Memory is the slot's own memory limit in bytes, 0 without one.
	Memory int64 `json:",omitempty"`
}

// Kill signals every process of a slot. SIGKILL goes through cgroup.kill.
type Kill struct {
	ID     string
	Slot   string
	Signal int
}

// TypeOutside is the type of Outside.
const TypeOutside = 90

// Outside asks how much the box has held outside its memory charge during a command that was
// killed. Age is how long ago the command began.
type Outside struct {
	ID   string
	Slot string
	Age  time.Duration
	// Began is when the command began, in the host's CLOCK_MONOTONIC: a slot serves several commands, and the kill of
	// an earlier one is not reported. 0: not known, and the slot has served no other.
	Began time.Duration `json:",omitempty"`
}

// OutsideHeld answers Outside: the bytes by which the memory limit was lowered last in that
// time, 0 if it was not lowered.
type OutsideHeld struct {
	Locks, Sockets int64 `json:",omitempty"`
	// Killed: the launcher killed the command because of it. The kernel does not count that.
	Killed bool `json:",omitempty"`
	// OOM: the kernel killed processes of the box for memory. Only a gVisor box has this: there it
	// is not the command that is killed but what the command runs in.
	OOM bool `json:",omitempty"`
}

// TypePause is the type of Pause.
const TypePause = 106

// Pause stops the commands of a box, or lets them go on. To ask for what is so already does nothing.
type Pause struct {
	ID     string
	Resume bool `json:",omitempty"`
}

// TypeReclaim is the type of Reclaim.
const TypeReclaim = 107

// Reclaim gives memory of a paused box to the host. One that is not paused keeps its memory. It is answered by
// Reclaimed.
type Reclaim struct {
	ID string
	// Ask: only say whether it is possible, also of a box that is not paused.
	Ask bool `json:",omitempty"`
}

// Reclaimed answers Reclaim.
type Reclaimed struct {
	Bytes int64 `json:",omitempty"` // by which the charge of the box has fallen
}

// TypeDiag is the type of a request whose body is a [Box] and whose reply has one descriptor: a socket
// of sock_diag(7) in the box's network.
const TypeDiag = 91

// TypeSockets is the type of Sockets.
const TypeSockets = 98

// Sockets asks for TCP sockets in the network of a box, at most MaxSockets: those that listen on
// the loopback addresses Listen, then IPv4 and IPv6 unconnected ones. They are the descriptors of
// the reply, in this order.
type Sockets struct {
	ID         string
	Listen     []netip.AddrPort `json:",omitempty"`
	IPv4, IPv6 int              `json:",omitempty"`
}

// MaxSockets is how many sockets one request can ask for.
const MaxSockets = 16

// Connect asks for another connection to the agent of a box: the only descriptor of the
// reply.
type Connect struct{ ID string }

// Where asks at which step another request of the same connection is, by the id of its frame.
// Clients send it when they have waited long.
type Where struct{ Request uint32 }

// At answers Where with one line for people: the step, how long it has taken, and which thread
// waits where in the kernel.
type At struct{ Text string }

// PTY asks for a terminal of the box. Descriptors of the reply: master, slave.
type PTY struct {
	ID   string
	User engine.User
	Size engine.WindowSize
}

// Update changes a running box.
type Update struct {
	ID     string
	Change engine.Change
	// Again: a launcher that was lost may have carried out part of this change. Parts
	// that are done are skipped.
	Again bool `json:",omitempty"`
}

// Updated answers Update: the attached mounts that can be filled, with one descriptor each.
type Updated struct {
	Volumes []Volume `json:",omitempty"`
	// Detached comes with an error: the targets that were detached before it.
	Detached []string `json:",omitempty"`
}

// Reply carries a failure or the result of a request in Body.
type Reply struct {
	Error *Error `json:",omitempty"`
	Body  any    `json:",omitempty"`
}

// Error is an error that keeps its meaning on the way to the client.
type Error struct {
	Kind    string
	Message string
	Field   *engine.FieldError `json:",omitempty"`
}

// ErrMissing: a directory or file that the client asked for does not exist. Other missing
// files are not reported this way.
var ErrMissing = fmt.Errorf("what was asked for: %w", fs.ErrNotExist)

// kinds are the conditions that clients distinguish.
var kinds = map[string]error{
	"unenforceable": engine.ErrUnenforceable,
	"lost":          engine.ErrBoxLost,
	"missing":       ErrMissing,
	"invalid":       engine.ErrInvalid,
	"at limit":      engine.ErrAtLimit,
	"unavailable":   engine.ErrNoLauncher,
	"no engine":     engine.ErrNoEngine,
	"no layer":      engine.ErrNoLayer,
	"layer in use":  engine.ErrLayerInUse,
}

// NewError wraps err for the client.
func NewError(err error) *Error {
	e := &Error{Message: err.Error()}
	var field *engine.FieldError
	if errors.As(err, &field) {
		e.Field = field
	}
	for kind, target := range kinds {
		if fieldSays := e.Field != nil && kind == "invalid"; !fieldSays && errors.Is(err, target) {
			e.Kind = kind
		}
	}
	return e
}

func (e *Error) Error() string { return e.Message }

// Unwrap returns the conditions that the launcher's error matched.
func (e *Error) Unwrap() []error {
	var all []error
	if e.Field != nil {
		all = append(all, e.Field)
	}
	if kind, ok := kinds[e.Kind]; ok {
		all = append(all, kind)
	}
	return all
}
