package rpc

import (
	"time"

	"github.com/boxd/boxd/engine"
)

// A launcher service that has a data directory also understands these requests:
//
//	client                                       launcher
//	  | -- MakeVolume     volume ----------------> |
//	  | <- Reply                                     |
//	  | -- RemoveVolume   name ------------------> |
//	  | <- Reply                                     |
//	  | -- Volumes        after -----------------> |
//	  | <- Reply          states, more               |
//	  | -- OpenDirectory  directory -------------> |
//	  | <- Reply          fds: directory             |
//	  | -- LimitDirectory directory, limits -----> |
//	  | <- Reply                                     |
//	  | -- CopyVolume     from, volume ----------> |
//	  | <- Reply          whether it is complete     |
//
// Each of them can be carried out twice. A copy may take long, so the launcher answers after at
// most CopyPatience; the client repeats the request until the copy is complete. The launcher
// gives a copy up when its client is gone or does not repeat the request, and when it is asked
// to remove the volume.
const (
	TypeMakeVolume     = 81
	TypeRemoveVolume   = 82
	TypeVolumes        = 83
	TypeOpenDirectory  = 84
	TypeLimitDirectory = 85
	TypeCopyVolume     = 92
)

// MakeVolume asks for a volume with these limits.
type MakeVolume struct{ Volume engine.Volume }

// RemoveVolume asks for the end of a volume.
type RemoveVolume struct{ Name string }

// MaxVolumes is how many volumes are in one answer: they must fit into one frame.
const MaxVolumes = 4096

// Volumes asks for the volumes whose names come after After.
type Volumes struct {
	After string `json:",omitempty"`
}

// VolumeList answers Volumes, sorted by name. More says that others come after the last.
type VolumeList struct {
	Volumes []engine.VolumeState
	More    bool `json:",omitempty"`
}

// OpenDirectory asks for a directory, the one descriptor of the reply.
type OpenDirectory struct{ Directory engine.Directory }

// LimitDirectory asks for limits of a directory of the host; 0 and 0 for none.
type LimitDirectory struct {
	Directory     engine.Directory
	Bytes, Inodes int64
}

// CopyPatience is how long the launcher lets a client wait for a copy.
const CopyPatience = 5 * time.Second

// CopyVolume asks for a volume with these limits and the content of the volume From; limits of
// 0 are those of From.
type CopyVolume struct {
	From   string
	Volume engine.Volume
}

// VolumeCopy answers CopyVolume.
type VolumeCopy struct {
	Complete    bool  `json:",omitempty"`
	Done, Total int64 // bytes
}
