// Package proto is the conversation between the launcher (engine/containerd) and its child
// boxd-containerd, the only program of boxd that links the client of containerd. The frames are
// those of package wire, the bodies are JSON.
//
//	launcher                                    boxd-containerd
//	  | <- Hello    version, protocol --------------- |
//	  | -- State    --------------------------------> |
//	  | <- Reply    containerd's version ------------ |
//	  | -- Create   id, runtime, spec --------------> |   a container and its task
//	  | <- Reply    pid of PID 1, which waits ------- |
//	  | -- Start    id -----------------------------> |
//	  | <- Reply    --------------------------------- |
//	  | -- List, Stats, Remove ---------------------> |
//	  | <- Reply    --------------------------------- |
//
// Requests are answered in any order, each within the time that it names. boxd-containerd keeps
// nothing: whichever process is started next answers in the same way. It ends when the
// connection does.
package proto

import (
	"encoding/json"
	"time"
)

// Protocol is the version of this conversation.
const Protocol = 1

// SocketFD is the descriptor of the connection in boxd-containerd.
const SocketFD = 3

// Namespace is the namespace of containerd that has the containers of every boxd of a host.
const Namespace = "boxd"

// Labels of a container.
const (
	LabelState = "boxd.state" // the state directory of the launcher that it belongs to
	LabelBox   = "boxd.box"   // the path of the directory of the box
)

// Frame types. The body of a request is a Request.
const (
	TypeHello = iota + 1
	TypeReply
	TypeState
	TypeCreate
	TypeStart
	TypeList
	TypeStats
	TypeRemove
)

// Hello is the first frame of boxd-containerd.
type Hello struct {
	Version  string // of boxd; must equal the launcher's
	Protocol int
}

// Request is the body of every request.
type Request struct {
	// Within is how long boxd-containerd waits for containerd. Greater than 0.
	Within time.Duration
	ID     string  `json:",omitempty"` // of the container; in all requests but State and List
	Create *Create `json:",omitempty"`
}

// Create describes a container. One with the same ID is removed first: only its box can have been
// the same, at an earlier time.
type Create struct {
	Labels  map[string]string
	Runtime string // such as "io.containerd.runc.v2"
	// Binary is the program that the shim runs as runc, Root where that keeps its state.
	Binary, Root string
	Spec         json.RawMessage // of the runtime, see opencontainers/runtime-spec
}

// Reply answers a request: with Failure, or with what the request asks for.
type Reply struct {
	Failure *Failure `json:",omitempty"`
	State   State
	PID     int      `json:",omitempty"` // of Create: PID 1, on the host
	IDs     []string `json:",omitempty"` // of List: the containers with the launcher's LabelState
	Stats   *Stats   `json:",omitempty"`
}

// State is what containerd says of itself.
type State struct {
	Version string `json:",omitempty"`
}

// Stats is what containerd reports of the cgroups in which PID 1 of a box is. They are those of
// the whole box on v1, and PID 1's own on cgroup2.
type Stats struct {
	Memory int64          // bytes, page cache included
	PIDs   int64          // processes and threads
	CPU    *time.Duration `json:",omitempty"` // since the box was made; nil on v1
}

// Failure is an error of boxd-containerd.
type Failure struct {
	Message string
	// NoEngine: containerd is absent, dead, too old, does not answer, or its socket is not root's.
	NoEngine bool `json:",omitempty"`
}

func (f *Failure) Error() string { return f.Message }
