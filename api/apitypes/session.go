package apitypes

import (
	"time"

	"github.com/boxd/boxd/engine"
)

// SessionSpec is what a client asks of a session. What is left out comes from the
// profile; what the profile locks is the profile's, whatever is asked.
type SessionSpec struct {
	Profile         string            `json:"profile,omitempty" doc:"Name of the profile; empty: \"default\"."`
	Image           string            `json:"image,omitempty" doc:"Root file system; empty or \"host\": the host's system directories, read-only."`
	Network         *bool             `json:"network,omitempty" doc:"Whether the box has a network beyond loopback."`
	CPUs            *float64          `json:"cpus,omitempty" doc:"Processors' worth of time."`
	Memory          *Size             `json:"memory,omitempty" doc:"RAM in bytes, or a string such as \"512M\"."`
	PIDs            *int64            `json:"pids,omitempty" doc:"Processes and threads at once."`
	WritableRoot    *bool             `json:"writable_root,omitempty" doc:"Lay a private writable layer over the root, thrown away with the box."`
	WorkspaceMode   *string           `json:"workspace_mode,omitempty" doc:"rw, ro or none."`
	Workspace       string            `json:"workspace,omitempty" doc:"Host directory to mount as the workspace; empty: one of boxd's own, which stays with the session."`
	WorkspaceSize   *Size             `json:"workspace_size,omitempty" doc:"Hard limit of the workspace, from 1 MiB: who writes more gets ENOSPC. 0: none."`
	WorkspaceInodes *int64            `json:"workspace_inodes,omitempty" doc:"Files and directories that can be in it, at most one for each KiB of its size; 0: one for each 16 KiB of its size, at least 1024."`
	WorkspaceTarget string            `json:"workspace_target,omitempty" doc:"Where it is mounted; empty: /workspace. Commands start there."`
	Mounts          []Mount           `json:"mounts,omitempty" doc:"More host directories and files to mount."`
	User            *engine.User      `json:"user,omitempty" doc:"User that runs commands that name none."`
	Env             map[string]string `json:"env,omitempty" doc:"Environment of all commands of the session."`
	IdleTTL         *Duration         `json:"idle_ttl,omitempty" doc:"Seconds without use, or a string such as \"5m\", after which the session ends."`
	MaxLifetime     *Duration         `json:"max_lifetime,omitempty" doc:"Seconds after which the session ends, used or not; 0: never."`
	Persistent      *bool             `json:"persistent,omitempty" doc:"Never end for idleness."`
	Timeout         *Duration         `json:"timeout,omitempty" doc:"Default timeout of an exec, in seconds."`
	TmpSize         *Size             `json:"tmp_size,omitempty" doc:"Size of /tmp, of the home directory and of /dev/shm, each."`
	UpperSize       *Size             `json:"upper_size,omitempty" doc:"Size of the writable layer."`
	Hostname        string            `json:"hostname,omitempty" doc:"Host name in the box."`
}

// SessionRequest asks for a session, which is made if it is not there: by its id,
// or by a scope template and the variables to fill it with.
type SessionRequest struct {
	ID        string            `json:"id,omitempty" doc:"Id of the session."`
	Scope     string            `json:"scope,omitempty" doc:"Template that gives the id, such as \"{launcher_type}_{launcher_id}\"; instead of id."`
	Variables map[string]string `json:"variables,omitempty" doc:"Variables of the scope; a missing one becomes \"unknown\"."`
	SessionSpec
}

// Mount is a host directory or file in the box.
type Mount struct {
	Source   string `json:"source" doc:"Absolute path on the host, beneath an allowed root. In answers also volume:NAME/path, which is boxd's own and cannot be asked for."`
	Target   string `json:"target" doc:"Absolute path in the box."`
	ReadOnly bool   `json:"read_only,omitempty"`
}

// Session is a session as it is now.
type Session struct {
	ID              string      `json:"id"`
	Tenant          string      `json:"tenant"`
	State           string      `json:"state" doc:"creating, running, stopping, stopped or failed. A failed session gets a new box with its next use."`
	Reason          string      `json:"reason,omitempty" doc:"Why it failed or stopped."`
	Box             string      `json:"box,omitempty" doc:"Id of its box."`
	Profile         string      `json:"profile"`
	Image           string      `json:"image,omitempty"`
	Network         bool        `json:"network"`
	CPUs            float64     `json:"cpus" doc:"-1: unlimited."`
	Memory          Size        `json:"memory" doc:"Bytes; -1: unlimited."`
	PIDs            int64       `json:"pids" doc:"-1: unlimited."`
	WritableRoot    bool        `json:"writable_root"`
	WorkspaceMode   string      `json:"workspace_mode"`
	Workspace       string      `json:"workspace,omitempty"`
	WorkspaceTarget string      `json:"workspace_target" doc:"Where the workspace is mounted, or would be."`
	WorkspaceSize   Size        `json:"workspace_size,omitempty" doc:"Hard limit of the workspace in bytes; absent: none."`
	WorkspaceInodes int64       `json:"workspace_inodes,omitempty" doc:"Hard limit of the files and directories in it; absent: it follows from the size."`
	Unenforced      string      `json:"unenforced,omitempty" doc:"Which of its limits this host cannot enforce, and why; only where the daemon allows that."`
	Warnings        []string    `json:"warnings,omitempty" doc:"What the session lacks of what its client asked for, such as a network."`
	Mounts          []Mount     `json:"mounts,omitempty"`
	Env             []string    `json:"env,omitempty" doc:"KEY=VALUE, sorted; viewers get the names only."`
	Persistent      bool        `json:"persistent"`
	IdleTTL         Duration    `json:"idle_ttl" doc:"Seconds."`
	MaxLifetime     Duration    `json:"max_lifetime" doc:"Seconds; 0: none."`
	Timeout         Duration    `json:"timeout" doc:"Seconds an exec may take unless it asks otherwise."`
	TimeoutCap      Duration    `json:"timeout_cap" doc:"Seconds an exec may ask for."`
	CreatedAt       time.Time   `json:"created_at"`
	LastUsedAt      time.Time   `json:"last_used_at"`
	ExpiresAt       *time.Time  `json:"expires_at,omitempty" doc:"When it ends if nothing uses it."`
	Generation      int         `json:"generation" doc:"Counts the boxes of the session, from 1."`
	TmpSize         Size        `json:"tmp_size"`
	Hostname        string      `json:"hostname,omitempty"`
	User            engine.User `json:"user"`
	WorkspaceBytes  int64       `json:"workspace_bytes,omitempty" doc:"What the workspace was measured at last."`
	Overridden      []string    `json:"overridden,omitempty" doc:"Fields of the request that the profile locks: its values count."`
	Execs           int         `json:"execs" doc:"Execs that are running."`
	Processes       int         `json:"processes" doc:"Managed processes that are running."`
	Created         bool        `json:"created,omitempty" doc:"This request made the session."`
	Recreated       bool        `json:"recreated,omitempty" doc:"This request gave it a new box, as the old one was lost."`
}

// SessionUpdate changes a live session. What is left out stays.
type SessionUpdate struct {
	Attach      []Mount   `json:"attach,omitempty" doc:"Mounts to add."`
	Detach      []string  `json:"detach,omitempty" doc:"Targets of mounts to take away; done first."`
	Network     *bool     `json:"network,omitempty" doc:"Only false: a network can be given up, not regained."`
	IdleTTL     *Duration `json:"idle_ttl,omitempty" doc:"Seconds."`
	MaxLifetime *Duration `json:"max_lifetime,omitempty" doc:"Seconds from the creation; 0: none."`
	Persistent  *bool     `json:"persistent,omitempty"`
	CPUs        *float64  `json:"cpus,omitempty"`
	Memory      *Size     `json:"memory,omitempty"`
	PIDs        *int64    `json:"pids,omitempty"`
}

// SessionList is a list of sessions, ordered by tenant and id.
type SessionList struct {
	Sessions []Session `json:"sessions" nullable:"false"`
}

// Usage is what a session's box uses now. What this host cannot measure is absent.
type Usage struct {
	Memory    *int64    `json:"memory,omitempty" doc:"Bytes, page cache included."`
	PIDs      *int64    `json:"pids,omitempty" doc:"Processes and threads."`
	CPU       *Duration `json:"cpu,omitempty" doc:"Seconds of processor time since the box was made."`
	Throttled *Duration `json:"throttled,omitempty" doc:"Seconds that the CPU limit made it wait."`
}

// Port is something that listens in a box.
type Port struct {
	Protocol string `json:"protocol" doc:"tcp, tcp6, udp or udp6."`
	Address  string `json:"address"`
	Port     int    `json:"port"`
}

// PortList is what listens in a session's box.
type PortList struct {
	Ports []Port `json:"ports" nullable:"false"`
}
