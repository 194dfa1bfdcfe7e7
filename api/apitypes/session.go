package apitypes

import (
	"time"

	"github.com/boxd/boxd/engine/spec"
)

// The settings of sessions are declared once, in package engine/spec.
type (
	// SessionSpec is what a client asks for in a session.
	SessionSpec = spec.Wishes
	// LiveWishes are the settings that can also change while a session lives. They are
	// embedded in SessionSpec and in SessionUpdate.
	LiveWishes = spec.LiveWishes
	// SessionUpdate changes a live session. Settings that are left out stay as they are.
	SessionUpdate = spec.Update
	// Mount is a directory or file of the host, mounted in the box.
	Mount = spec.MountWish
	// Sensitive says since when and why something is sensitive.
	Sensitive = spec.Sensitive
	// Labels are keys and values that users give to sessions and processes.
	Labels = spec.Labels
)

// SessionRequest asks for a session, by its ID, or by a scope template and its variables.
// The session is created if it does not exist.
type SessionRequest struct {
	ID           string            `json:"id,omitempty" doc:"Id of the session."`
	Scope        string            `json:"scope,omitempty" doc:"Template that gives the id, such as \"{launcher_type}_{launcher_id}\"; instead of id. Without both, the default scope of the token, the profile or the daemon counts."`
	Variables    map[string]string `json:"variables,omitempty" doc:"Variables of the scope. Of one that is missing, {name} becomes \"unknown\" unless the tenant's scopes are strict, {name!} is refused, and {name:-text} becomes the text."`
	DefaultScope string            `json:"default_scope,omitempty" doc:"Template that counts if token and profile have none; instead of the daemon's."`
	StrictScope  bool              `json:"strict_scope,omitempty" doc:"Refuse a scope with a {name} whose variable is missing, as if the tenant's scopes were strict."`
	SessionSpec
}

// Session is a session as it is now.
type Session struct {
	ID              string             `json:"id"`
	Name            string             `json:"name,omitempty" doc:"Name for people."`
	Labels          Labels             `json:"labels,omitempty"`
	Tenant          string             `json:"tenant"`
	Sensitive       *Sensitive         `json:"sensitive,omitempty" doc:"Since when and why the session has no network, for good; absent: it is not sensitive."`
	State           string             `json:"state" doc:"creating, running, stopping, stopped or failed. A failed session gets a new box with its next use."`
	Reason          string             `json:"reason,omitempty" doc:"Why it failed or stopped."`
	Box             string             `json:"box,omitempty" doc:"Id of its box."`
	Profile         string             `json:"profile"`
	Image           string             `json:"image,omitempty" doc:"\"host\", or the full reference of an image."`
	ImageDigest     string             `json:"image_digest,omitempty" doc:"Digest that the image had when the session was created; absent for \"host\"."`
	Engine          string             `json:"engine,omitempty" doc:"What built its box: native, oci or containerd; absent without a box."`
	Isolation       string             `json:"isolation,omitempty" doc:"The wall around its box: namespaces or gvisor; absent without a box."`
	EngineReason    string             `json:"engine_reason,omitempty" doc:"Why it was this engine."`
	Degraded        string             `json:"degraded,omitempty" doc:"Why its box has a weaker wall than the session asks for; only where it accepts that (require false)."`
	Network         bool               `json:"network"`
	NetworkOff      string             `json:"network_off,omitempty" doc:"Why the network that the session has is off now, such as a profile that allows none any more; absent: it is on, or network is false."`
	NetworkRules    *spec.NetworkRules `json:"network_rules,omitempty" doc:"What narrows the rules of its profile; absent: nothing."`
	Published       []Published        `json:"published,omitempty" doc:"Ports of the host that lead to ports of its box."`
	CPUs            float64            `json:"cpus" doc:"-1: unlimited."`
	Memory          Size               `json:"memory" doc:"Bytes; -1: unlimited."`
	PIDs            int64              `json:"pids" doc:"-1: unlimited."`
	WritableRoot    bool               `json:"writable_root"`
	WorkspaceMode   string             `json:"workspace_mode"`
	Workspace       string             `json:"workspace,omitempty"`
	WorkspaceTarget string             `json:"workspace_target" doc:"Where the workspace is mounted, or would be."`
	WorkspaceSize   Size               `json:"workspace_size,omitempty" doc:"Hard limit of the workspace in bytes; absent: none."`
	WorkspaceInodes int64              `json:"workspace_inodes,omitempty" doc:"Hard limit of the files and directories in it; absent: it follows from the size."`
	Unenforced      string             `json:"unenforced,omitempty" doc:"Which of its limits this host cannot enforce, and why; only where the daemon allows that."`
	Warnings        []string           `json:"warnings,omitempty" doc:"What the session lacks of what its client asked for, such as a network."`
	Mounts          []Mount            `json:"mounts,omitempty"`
	Volumes         []AttachedVolume   `json:"volumes,omitempty" doc:"Volumes of the tenant that the session has."`
	Env             []string           `json:"env,omitempty" doc:"KEY=VALUE, sorted; viewers get the names only."`
	Persistent      bool               `json:"persistent"`
	IdleTTL         Duration           `json:"idle_ttl" doc:"Seconds."`
	MaxLifetime     Duration           `json:"max_lifetime" doc:"Seconds; 0: none."`
	Timeout         Duration           `json:"timeout" doc:"Seconds an exec may take unless it asks otherwise."`
	TimeoutCap      Duration           `json:"timeout_cap" doc:"Seconds an exec may ask for."`
	Retain          string             `json:"retain,omitempty" doc:"How long its workspace stays when a TTL ends it: none, forever, or a time such as 7d. It is stopped then, and expires_at says when it goes; its next use gives it a new box."`
	AutoResume      bool               `json:"auto_resume,omitempty" doc:"Use resumes it when it is paused."`
	PausedAt        *time.Time         `json:"paused_at,omitempty" doc:"Since when it is paused; absent: it is not. Its state is running."`
	CreatedAt       time.Time          `json:"created_at"`
	LastUsedAt      time.Time          `json:"last_used_at"`
	ExpiresAt       *time.Time         `json:"expires_at,omitempty" doc:"When it ends if nothing uses it."`
	Generation      int                `json:"generation" doc:"Counts the boxes of the session, from 1."`
	TmpSize         Size               `json:"tmp_size"`
	Hostname        string             `json:"hostname,omitempty"`
	User            spec.User          `json:"user"`
	WorkspaceBytes  int64              `json:"workspace_bytes,omitempty" doc:"What the workspace was measured at last."`
	Overridden      []string           `json:"overridden,omitempty" doc:"Fields of the request that the profile locks: its values count."`
	Execs           int                `json:"execs" doc:"Execs that are running."`
	Processes       int                `json:"processes" doc:"Managed processes that are running."`
	ReclaimedBytes  *int64             `json:"reclaimed_bytes,omitempty" doc:"How much of its memory this request gave to the host; only in the answer to a pause with reclaim."`
	Created         bool               `json:"created,omitempty" doc:"This request made the session."`
	Recreated       bool               `json:"recreated,omitempty" doc:"This request gave it a new box, as the old one was lost."`
}

// PauseRequest pauses a session.
type PauseRequest struct {
	Reclaim bool `json:"reclaim,omitempty" doc:"Also give memory of the paused session to the host: page cache, and what the host's swap has room for. The answer comes when that is done, after at most some two seconds; nothing runs meanwhile. Refused, and nothing is paused, where the host cannot: without swap, cgroup v2 or Linux 5.19."`
}

// SessionList is a list of sessions, ordered by tenant and id.
type SessionList struct {
	Sessions []Session `json:"sessions" nullable:"false"`
}

// Usage is what a session's box uses now. Figures that the host cannot measure are absent.
type Usage struct {
	Memory    *int64    `json:"memory,omitempty" doc:"Bytes, page cache included."`
	PIDs      *int64    `json:"pids,omitempty" doc:"Processes and threads."`
	CPU       *Duration `json:"cpu,omitempty" doc:"Seconds of processor time since the box was made."`
	Throttled *Duration `json:"throttled,omitempty" doc:"Seconds that the CPU limit made it wait."`
}

// Port is a port on which a process in the box listens.
type Port struct {
	Protocol string `json:"protocol" doc:"tcp, tcp6, udp or udp6."`
	Address  string `json:"address"`
	Port     int    `json:"port"`
}

// Published is a port of the host that leads to a port of the box.
type Published struct {
	Port        int    `json:"port" doc:"Port of the box."`
	Host        int    `json:"host" doc:"Port of the host."`
	Address     string `json:"address" doc:"Address of the host; 0.0.0.0 and :: are all of them. Empty if the configuration has no publish.ports any more."`
	Connections int    `json:"connections" doc:"Connections through it now."`
	Reason      string `json:"reason,omitempty" doc:"Why it is not open now; absent: it is."`
}

// Network describes the network of a session's box since this daemon made the box or took it over.
type Network struct {
	On     bool         `json:"on" doc:"It leads out of the box now."`
	Live   []Connection `json:"live" nullable:"false" doc:"Open connections, oldest first."`
	Recent []Connection `json:"recent" nullable:"false" doc:"The last 100 that have ended, newest first."`
	Denied []Denial     `json:"denied" nullable:"false" doc:"What was refused, most frequent first."`
}

// Connection is a connection of a box, or one HTTP request.
type Connection struct {
	Name     string    `json:"name,omitempty" doc:"Absent if the program asked for an address."`
	Port     uint16    `json:"port"`
	Address  string    `json:"address,omitempty" doc:"Address and port that were dialled."`
	Protocol string    `json:"protocol" doc:"connect, socks5, http, or inject for http that was sent as https."`
	In       int64     `json:"in" doc:"Bytes that the box received."`
	Out      int64     `json:"out" doc:"Bytes that it sent."`
	Allowed  bool      `json:"allowed"`
	Rule     string    `json:"rule" doc:"The rule that decided."`
	Reason   string    `json:"reason,omitempty" doc:"Why it was refused, failed or was closed by boxd."`
	Start    time.Time `json:"start"`
	Duration Duration  `json:"duration" doc:"Seconds."`
}

// PortList is the ports on which processes in a session's box listen.
type PortList struct {
	Ports     []Port      `json:"ports" nullable:"false"`
	Published []Published `json:"published" nullable:"false" doc:"Ports of the host that lead to ports of the box."`
}
