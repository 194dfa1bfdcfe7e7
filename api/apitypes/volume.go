package apitypes

import (
	"time"

	"github.com/boxd/boxd/engine/spec"
)

// SessionVolume is a volume that a session asks for.
type SessionVolume = spec.VolumeWish

// AttachedVolume is a volume that a session has.
type AttachedVolume struct {
	Name     string `json:"name"`
	Target   string `json:"target" doc:"Where it is in the box."`
	ReadOnly bool   `json:"read_only"`
}

// States of a [Volume].
const (
	VolumeReady    = "ready"
	VolumeRemoving = "removing" // its removal failed, and is retried
	VolumeLost     = "lost"     // its data is gone: it can be removed, and nothing else
)

// VolumeRequest asks for a volume. It is created if it does not exist.
type VolumeRequest struct {
	Name      string `json:"name" doc:"1 to 64 of A-Z, a-z, 0-9 and \"._-\", not starting with \".\" and without \"..\"."`
	Size      Size   `json:"size,omitempty" doc:"Hard limit in bytes, or a string such as \"1G\", from 1 MiB: who writes more gets ENOSPC. Only with from it can be absent."`
	Inodes    int64  `json:"inodes,omitempty" doc:"Files and directories that can be in it, at most one for each KiB of its size; absent: one for each 16 KiB, at least 1024."`
	From      string `json:"from,omitempty" doc:"Volume whose content a new volume gets. No session may have that volume read-write. Its size and inodes are the defaults, and the least that is possible."`
	Sensitive bool   `json:"sensitive,omitempty" doc:"Mark the volume as sensitive, also one that exists: sessions that have it have no network, for good."`
}

// VolumeUpdate changes the limits of a volume.
type VolumeUpdate struct {
	Size      Size  `json:"size,omitempty" doc:"New hard limit. It can shrink to what the volume holds if the host has project quota; otherwise it can only grow, on some hosts only while no session has it."`
	Inodes    int64 `json:"inodes,omitempty" doc:"New limit of files and directories; absent: as before."`
	Sensitive *bool `json:"sensitive,omitempty" doc:"true marks the volume as sensitive, without a size. The mark stays."`
}

// Volume is a directory of limited size that a tenant keeps for its sessions.
type Volume struct {
	Name      string       `json:"name"`
	Tenant    string       `json:"tenant"`
	State     string       `json:"state" doc:"ready, removing, or lost: the data is gone from the launcher's data directory."`
	Size      Size         `json:"size" doc:"Hard limit in bytes."`
	Inodes    int64        `json:"inodes,omitempty" doc:"Hard limit of files and directories; absent: it follows from the size."`
	From      string       `json:"from,omitempty" doc:"Volume of which it was a copy at first."`
	UsedBytes int64        `json:"used_bytes" doc:"Bytes in it, as measured last."`
	Attached  []Attachment `json:"attached" nullable:"false" doc:"Sessions that have it: several read-only, or one read-write."`
	Sensitive *Sensitive   `json:"sensitive,omitempty" doc:"Since when and why sessions that have it have no network; absent: it is not sensitive."`
	CreatedAt time.Time    `json:"created_at"`
	Created   bool         `json:"created,omitempty" doc:"This request made the volume."`
}

// Attachment is a session that has a volume.
type Attachment struct {
	Session  string `json:"session"`
	ReadOnly bool   `json:"read_only"`
}

// VolumeList is a list of volumes, ordered by tenant and name.
type VolumeList struct {
	Volumes []Volume `json:"volumes" nullable:"false"`
}

// SensitivePath is a path that a sensitive session can write to, or could. A session that mounts it,
// something in it or something around it, becomes sensitive.
type SensitivePath struct {
	Path   string `json:"path" doc:"Path of the host, or volume:NAME/path in a volume of boxd's own, such as a skill of LangBot's."`
	Tenant string `json:"tenant" doc:"Tenant whose session could write to it."`
	Sensitive
}

// SensitivePathList is a list of sensitive paths, sorted.
type SensitivePathList struct {
	Paths []SensitivePath `json:"paths" nullable:"false"`
}
