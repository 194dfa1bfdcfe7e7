package policy

import (
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// Request is what a client asks for. Nil and empty fields are filled in from the
// profile.
type Request struct {
	Profile string `json:"profile,omitempty"`
	Image   string `json:"image,omitempty"`
	Network *bool  `json:"network,omitempty"`
	// CPUs is cores' worth of time, Memory bytes of RAM, PIDs processes and threads.
	CPUs         *float64   `json:"cpus,omitempty"`
	Memory       *spec.Size `json:"memory,omitempty"`
	PIDs         *int64     `json:"pids,omitempty"`
	WritableRoot *bool      `json:"writable_root,omitempty"`
	// WorkspaceMode is "rw", "ro" or "none".
	WorkspaceMode *string `json:"workspace_mode,omitempty"`
	// Workspace is a directory of the host; empty: one that boxd keeps.
	Workspace string `json:"workspace,omitempty"`
	// WorkspaceSize is the hard limit of the workspace in bytes, WorkspaceInodes that
	// of its files and directories. 0 is no limit, and 0 inodes with a size is a number
	// that follows from it.
	WorkspaceSize   *spec.Size `json:"workspace_size,omitempty"`
	WorkspaceInodes *int64     `json:"workspace_inodes,omitempty"`
	// WorkspaceTarget is where the workspace is mounted, an absolute, cleaned path;
	// empty: engine.WorkspaceTarget.
	WorkspaceTarget string `json:"workspace_target,omitempty"`
	// MakeWorkspace makes a Workspace that is missing, as the owner of the directory
	// above it. For callers within boxd: no client can say so.
	MakeWorkspace bool `json:"-"`

	// Warnings say what the caller lacks of what it really wants, one line each. They come
	// back in [Resolved]. For callers within boxd: no client can say so.
	Warnings []string `json:"-"`

	Mounts []Mount           `json:"mounts,omitempty"`
	User   *engine.User      `json:"user,omitempty"`
	Env    map[string]string `json:"env,omitempty"` // 64 KiB together at most
	// IdleTTL is the time without use after which the session ends, MaxLifetime the
	// time after which it ends in any case; 0 in MaxLifetime is never.
	IdleTTL     *spec.Duration `json:"idle_ttl,omitempty"`
	MaxLifetime *spec.Duration `json:"max_lifetime,omitempty"`
	// Persistent exempts the session from IdleTTL.
	Persistent *bool `json:"persistent,omitempty"`
	// Timeout of one command that names none.
	Timeout   *spec.Duration `json:"timeout,omitempty"`
	TmpSize   *spec.Size     `json:"tmp_size,omitempty"`
	UpperSize *spec.Size     `json:"upper_size,omitempty"`
	Hostname  string         `json:"hostname,omitempty"`
	// Scope is a template of the session's id, such as
	// "{launcher_type}_{launcher_id}"; Variables are its values. See [ScopeID].
	Scope     string            `json:"scope,omitempty"`
	Variables map[string]string `json:"variables,omitempty"`
}

// Mount asks for a directory or file of the host at Target in the box.
type Mount struct {
	Source   string `json:"source"`
	Target   string `json:"target"`
	ReadOnly bool   `json:"read_only,omitempty"`
	// Volume of the engine that Source is a path in, "/" being all of it; empty: the
	// host. For callers within boxd, so it is not held against the allowed mount roots.
	Volume string `json:"-"`
	// NoLinks is as in [engine.Mount]. For callers within boxd.
	NoLinks string `json:"-"`
}

// Modes of a workspace.
const (
	WorkspaceRW   = "rw"
	WorkspaceRO   = "ro"
	WorkspaceNone = "none"
)

// Resolved is a request that was allowed, with nothing left open.
type Resolved struct {
	Profile string `json:"profile"`
	// Spec has every mount of the request, the workspace only if it is a host path
	// (the first one then). A workspace of boxd's own is added by the session, with
	// [Resolved.WorkspaceMount].
	Spec          engine.Spec `json:"spec"`
	Network       bool        `json:"network"`
	WorkspaceMode string      `json:"workspace_mode"`      // never empty
	Workspace     string      `json:"workspace,omitempty"` // host path; empty: one of boxd's own
	// WorkspaceSize and WorkspaceInodes are its hard limits; 0: none, and inodes that
	// follow from the size.
	WorkspaceSize   int64 `json:"workspace_size,omitempty"`
	WorkspaceInodes int64 `json:"workspace_inodes,omitempty"`
	// WorkspaceTarget is where it is mounted; empty in what was written before there
	// was a choice. See [Resolved.Target].
	WorkspaceTarget string `json:"workspace_target,omitempty"`
	// MakeWorkspace makes a Workspace that is missing.
	MakeWorkspace bool          `json:"make_workspace,omitempty"`
	Env           []string      `json:"env,omitempty"` // KEY=VALUE, sorted
	IdleTTL       time.Duration `json:"idle_ttl"`      // above 0; without meaning if Persistent
	MaxLifetime   time.Duration `json:"max_lifetime"`  // 0: for ever
	Persistent    bool          `json:"persistent"`
	Timeout       time.Duration `json:"timeout"`     // of a command that names none
	TimeoutCap    time.Duration `json:"timeout_cap"` // of any command
	// MountMode is the most that mounts attached later get: "rw", "ro" or "none".
	MountMode string `json:"mount_mode"`
	// Overridden are the fields of the request whose value was replaced because the
	// profile locks them, such as "network" or "mounts[0].read_only", sorted.
	Overridden []string `json:"overridden,omitempty"`
	// Warnings are those of the request.
	Warnings []string `json:"warnings,omitempty"`
	// Decisions are what was decided on the way, for the audit log.
	Decisions []Decision `json:"-"`
}
