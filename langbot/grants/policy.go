package grants

import (
	"encoding/json"
	"math"
	"path"

	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/langbot/protocol"
)

// LogicalSession is the only session of an admitted workspace.
const LogicalSession = "global"

// RequiredBackend is the only backend that a policy can require.
const RequiredBackend = "nsjail"

// Policy is the object "admission" of box_init: the rules for every grant and every admitted
// session.
type Policy struct {
	Required            bool
	MaxSessions         int64 // 0 or 1
	MaxManagedProcesses int64 // 0
	MaxGrantTTLSec      int64
	MaxTimeoutSec       int64
	CPUs                float64
	MemoryMB            int64
	PidsLimit           int64
	ReadOnlyRootfs      bool
	WorkspaceQuotaMB    int64
	ReadinessCacheSec   int64
}

// ParsePolicy parses a policy; an empty one, or null, requires no admission. If raw cannot be
// parsed, the policy requires admission, and the error, of class Readiness, says why: a typo
// must not open the door.
func ParsePolicy(raw json.RawMessage) (Policy, error) {
	if len(raw) == 0 || string(raw) == "null" {
		raw = json.RawMessage("{}")
	}
	const most = math.MaxInt64
	s := protocol.NewStrict(protocol.Readiness, "admission", raw)
	s.Only("logical_session_id", LogicalSession)
	s.Only("required_backend", RequiredBackend)
	p := Policy{
		Required:            s.BoolOr("required", false),
		MaxSessions:         s.IntOr("max_sessions", 1, 0, 1),
		MaxManagedProcesses: s.IntOr("max_managed_processes", 0, 0, 0),
		MaxGrantTTLSec:      s.IntOr("max_grant_ttl_sec", 300, 1, most),
		MaxTimeoutSec:       s.IntOr("max_timeout_sec", 120, 1, most),
		CPUs:                s.PositiveOr("cpus", 1),
		MemoryMB:            s.IntOr("memory_mb", 512, 32, most),
		PidsLimit:           s.IntOr("pids_limit", 128, 1, most),
		ReadOnlyRootfs:      s.BoolOr("read_only_rootfs", true),
		WorkspaceQuotaMB:    s.IntOr("workspace_quota_mb", 0, 0, most),
		ReadinessCacheSec:   s.IntOr("readiness_cache_sec", 15, 0, most),
	}
	if err := s.Err(); err != nil {
		p, _ = ParsePolicy(nil)
		p.Required = true
		return p, protocol.Errorf(protocol.Readiness, "Invalid sandbox admission configuration: %s", err.(*protocol.Error).Text)
	}
	return p, nil
}

// Owned are the directories of a workspace that its sandbox gets, whatever the spec says.
type Owned struct {
	// HostPath is the directory of the workspace on the host.
	HostPath string
	// Skill returns the directory of one of its skills.
	Skill func(name string) (string, error)
}

// Apply checks the spec of an admitted session, and overwrites its settings with those of
// the policy. Errors are of class Admission.
func (p Policy) Apply(s *protocol.BoxSpec, o Owned) error {
	switch {
	case s.Network != "off":
		return refuse("Managed sandbox network access is disabled")
	case len(s.ExtraMounts) > 0:
		return refuse("Managed sandbox additional host mounts are disabled")
	case s.MountPath != protocol.DefaultMountPath:
		return refuse("Managed sandbox mount_path is runtime-owned: use %s", protocol.DefaultMountPath)
	case !pathin.In(path.Clean(s.Workdir), protocol.DefaultMountPath):
		return refuse("Managed sandbox workdir must stay under %s", protocol.DefaultMountPath)
	case s.HostPath != nil && path.Clean(*s.HostPath) != path.Clean(o.HostPath):
		return refuse("Managed sandbox host_path is runtime-owned: leave it out")
	}
	mounts := []protocol.MountSpec{}
	if s.SkillName != nil {
		dir, err := o.Skill(*s.SkillName)
		if err != nil {
			return refuse("Managed sandbox skill is unavailable in this Workspace")
		}
		mounts = append(mounts, protocol.MountSpec{HostPath: dir, MountPath: protocol.DefaultMountPath + "/.skills/" + *s.SkillName, Mode: "ro"})
	}
	s.SessionID = LogicalSession
	s.Image = protocol.DefaultImage
	s.HostPath, s.HostPathMode = &o.HostPath, "rw"
	s.ExtraMounts = mounts
	s.Persistent = true
	s.TimeoutSec = min(s.TimeoutSec, p.MaxTimeoutSec)
	s.CPUs, s.MemoryMB, s.PidsLimit = p.CPUs, p.MemoryMB, p.PidsLimit
	s.ReadOnlyRootfs, s.WorkspaceQuotaMB = p.ReadOnlyRootfs, p.WorkspaceQuotaMB
	return nil
}

// CheckSession refuses every session except the only one of an admitted workspace.
func CheckSession(c protocol.Context, id string) error {
	want, _ := c.Physical(LogicalSession)
	if got, err := c.Physical(id); err != nil || got != want {
		return refuse("Managed sandbox session must be %q", LogicalSession)
	}
	return nil
}

// ErrProcesses refuses managed processes and their relays: the cap of every policy is 0.
var ErrProcesses = refuse("Managed sandbox processes are disabled")
