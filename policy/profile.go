package policy

import (
	"slices"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// Profile is a named set of defaults, caps and locked fields. Fields that a
// [Request] has too are named as there.
type Profile struct {
	Name          string    `json:"name"`
	Network       bool      `json:"network"`
	CPUs          float64   `json:"cpus"`
	Memory        spec.Size `json:"memory"`
	PIDs          int64     `json:"pids"`
	OpenFiles     int64     `json:"open_files"` // per process
	FileSize      spec.Size `json:"file_size"`  // per file; Unlimited: none
	WritableRoot  bool      `json:"writable_root"`
	TmpSize       spec.Size `json:"tmp_size"`
	UpperSize     spec.Size `json:"upper_size"`
	WorkspaceMode string    `json:"workspace_mode"`
	MountMode     string    `json:"mount_mode"` // the most that extra mounts get: "rw", "ro" or "none"
	// WorkspaceSize and WorkspaceInodes are hard limits of the workspace; 0: none, and
	// inodes by the size.
	WorkspaceSize   spec.Size     `json:"workspace_size"`
	WorkspaceInodes int64         `json:"workspace_inodes"`
	Timeout         spec.Duration `json:"timeout"`
	IdleTTL         spec.Duration `json:"idle_ttl"`
	MaxLifetime     spec.Duration `json:"max_lifetime"` // 0: for ever
	Persistent      bool          `json:"persistent"`

	// AllowNetwork and AllowPersistent say whether a request may ask for it.
	AllowNetwork    bool `json:"allow_network"`
	AllowPersistent bool `json:"allow_persistent"`
	// Caps are the most that a request may ask for.
	Caps Caps `json:"caps"`
	// Locked names fields of the request that are ignored, sorted: the profile's
	// value is used.
	Locked []string `json:"locked"`
}

// Caps are the most that a request may ask for. A negative one is none.
type Caps struct {
	CPUs      float64   `json:"cpus"`
	Memory    spec.Size `json:"memory"`
	PIDs      int64     `json:"pids"`
	TmpSize   spec.Size `json:"tmp_size"`
	UpperSize spec.Size `json:"upper_size"`
	// WorkspaceSize is that of the hard limit: a workspace without one is above it.
	WorkspaceSize spec.Size     `json:"workspace_size"`
	Timeout       spec.Duration `json:"timeout"` // a longer one is cut to this
	IdleTTL       spec.Duration `json:"idle_ttl"`
	MaxLifetime   spec.Duration `json:"max_lifetime"`
}

// DefaultProfile is the profile of a request that names none, LangbotProfile that of
// the door for LangBot, and DefaultIdleTTL the idle TTL of profiles that set none.
const (
	DefaultProfile = "default"
	LangbotProfile = "langbot"
	DefaultIdleTTL = 300 * time.Second
)

// lockable are the fields that a profile can lock, by their names in a request.
var lockable = []string{
	"cpus", "idle_ttl", "max_lifetime", "memory", "network", "persistent", "pids",
	"timeout", "tmp_size", "upper_size", "workspace_inodes", "workspace_mode", "workspace_size", "writable_root",
}

// unlimitedTime is a cap that is none.
const unlimitedTime = spec.Duration(-time.Second)

// builtin returns the profiles that are always there.
func builtin(idleTTL spec.Duration) map[string]Profile {
	base := Profile{
		Name: DefaultProfile,
		CPUs: 1, Memory: 512 << 20, PIDs: spec.DefaultPIDs,
		OpenFiles: spec.DefaultOpenFiles, FileSize: engine.Unlimited,
		TmpSize: spec.DefaultTmpSize, UpperSize: spec.DefaultUpperSize,
		WorkspaceMode: WorkspaceRW, MountMode: WorkspaceRW,
		Timeout: spec.Duration(30 * time.Second), IdleTTL: idleTTL,
		AllowNetwork: true, AllowPersistent: true,
		Caps: Caps{
			CPUs: 4, Memory: 4 << 30, PIDs: 1024, TmpSize: 1 << 30, UpperSize: 2 << 30, WorkspaceSize: engine.Unlimited,
			Timeout: spec.Duration(120 * time.Second), IdleTTL: spec.Duration(7 * 24 * time.Hour), MaxLifetime: unlimitedTime,
		},
	}

	offline := base
	offline.Name = "offline_readonly"
	offline.CPUs, offline.Memory, offline.PIDs = 0.5, 256<<20, 64
	offline.Caps.CPUs, offline.Caps.Memory, offline.Caps.PIDs = 0.5, 256<<20, 64
	offline.UpperSize = 128 << 20 // an upper layer counts as memory, and must be smaller
	offline.Caps.UpperSize = 128 << 20
	offline.Caps.TmpSize = 256 << 20
	offline.Caps.Timeout = spec.Duration(60 * time.Second)
	offline.WorkspaceMode, offline.MountMode = WorkspaceRO, WorkspaceRO
	offline.AllowNetwork = false
	offline.Locked = []string{"network", "workspace_mode", "writable_root"}

	basic := base
	basic.Name = "network_basic"
	basic.Network = true

	extended := basic
	extended.Name = "network_extended"
	extended.CPUs, extended.Memory, extended.PIDs = 2, 1024<<20, 512
	extended.WritableRoot = true
	extended.Caps.Timeout = spec.Duration(300 * time.Second)

	langbot := base
	langbot.Name = LangbotProfile
	langbot.Caps.Timeout = spec.Duration(time.Hour)

	all := map[string]Profile{}
	for _, p := range []Profile{base, offline, basic, extended, langbot} {
		all[p.Name] = p
	}
	return all
}

// locks says whether field is one that a request cannot change.
func (p Profile) locks(field string) bool { return slices.Contains(p.Locked, field) }

// clone shares no memory with p.
func (p Profile) clone() Profile {
	p.Locked = slices.Clone(p.Locked)
	return p
}
