package spec

// Unlimited is the value of a limit that shall not be set. The zero value of
// every limit means "the default".
const Unlimited = -1

// Defaults of the limits that a Spec leaves at zero. They fit code that nobody
// has looked at: enough for a browser and for what common build tools do (docs/compatibility.md
// has what they used), too little to hurt the host.
const (
	DefaultMemory    = 512 << 20 // bytes
	DefaultPIDs      = 256
	DefaultCPUs      = 1.0
	DefaultOpenFiles = 4096
	DefaultTmpSize   = 64 << 20  // bytes, for /tmp, the home directory and /dev/shm each
	DefaultUpperSize = 256 << 20 // bytes, for the writable layer; it counts as memory, so less than that
)

// Bounds of the limits. MinMemory is what the smallest dynamic program needs to
// start and be killed cleanly.
const (
	MinMemory    = 4 << 20
	MaxMemory    = 1 << 46
	MaxPIDs      = 1 << 22 // PID_MAX_LIMIT of a 64-bit kernel
	MinCPUs      = 0.01    // cpu.max takes at least 1 ms per 100 ms period
	MaxCPUs      = 4096
	MaxOpenFiles = 1 << 20
	MinTmpSize   = 64 << 10
)

// Bounds of a volume, and so of a workspace with a hard limit.
const (
	MinVolumeBytes  = 1 << 20
	MaxVolumeBytes  = 4 << 40 // a file on ext4 is at most 16 TiB
	MinVolumeInodes = 16
	MaxVolumeInodes = 1 << 30
)

// WorkspaceTarget is where the workspace of a box is mounted.
const WorkspaceTarget = "/workspace"

// User is a numeric user and group inside the box. The zero value is the box's
// root, which has no capabilities and maps to an unprivileged id on the host.
type User struct {
	UID int `json:"uid"` // 0 … MaxID
	GID int `json:"gid"` // 0 … MaxID
}

// MaxID is the highest user or group id for commands in a box. A box has 65,536
// ids; the last one belongs to its PID 1.
const MaxID = 65534

// Spec describes a box before it exists. It is a pure value that can be
// serialised; [Spec.Validate] checks it without touching the kernel.
type Spec struct {
	// ID names the box, once among the boxes of an engine: 1 to 64 of a-z, 0-9 and
	// "-", starting with a letter or digit. Empty: a random one.
	ID string `json:"id,omitempty"`
	// Image is the root file system. Empty or "host": the host's system
	// directories, read-only.
	Image string `json:"image,omitempty"`
	// Hostname inside the box. Empty: "box".
	Hostname string `json:"hostname,omitempty"`
	// User runs commands that name no user of their own. What it writes into
	// the workspace and the mounts belongs to the owner of the host directory.
	User User `json:"user"`
	// WritableRoot puts a private overlay of UpperSize bytes over the root,
	// thrown away with the box.
	WritableRoot bool `json:"writable_root,omitempty"`
	// UpperSize is the size of that overlay in bytes; 0 is DefaultUpperSize.
	UpperSize int64 `json:"upper_size,omitempty"`
	// TmpSize is the size in bytes of /tmp, of the home directory and of
	// /dev/shm, each; 0 is DefaultTmpSize.
	TmpSize int64 `json:"tmp_size,omitempty"`
	// Mounts are bind mounts of host directories and files. The workspace is
	// the one whose target is WorkspaceTarget.
	Mounts []Mount `json:"mounts,omitempty"`
	// Limits of the box as a whole.
	Limits Limits `json:"limits"`
	// AllowDegraded accepts a host that cannot enforce a limit that was asked
	// for. Without it that is ErrUnenforceable.
	AllowDegraded bool `json:"allow_degraded,omitempty"`
	// Labels are the caller's own notes. An engine's service keeps them with the box, so
	// that whoever adopts it can tell whose it is. They mean nothing to an engine and
	// are not shown to the box.
	Labels map[string]string `json:"labels,omitempty"`
}

// Limits bound what all commands of a box use together. Zero means the default,
// Unlimited means none.
type Limits struct {
	Memory int64   `json:"memory,omitempty"` // bytes of RAM; swap is always off
	PIDs   int64   `json:"pids,omitempty"`   // processes and threads at once
	CPUs   float64 `json:"cpus,omitempty"`   // cores' worth of time
	// Per process, through rlimits:
	OpenFiles int64 `json:"open_files,omitempty"` // RLIMIT_NOFILE, the hard limit; the soft one is 1024 at most
	FileSize  int64 `json:"file_size,omitempty"`  // RLIMIT_FSIZE in bytes; 0 is unlimited
}

// Change alters a running box. Nil and empty fields leave things as they are.
type Change struct {
	// Limits replaces memory, pids and cpus limits: zero fields are left as
	// they are. Per-process limits count for commands started afterwards.
	Limits *Limits
	// Attach adds mounts, Detach takes away mounts by target. Detach is done
	// first.
	Attach []Mount
	Detach []string
}
