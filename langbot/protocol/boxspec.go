package protocol

import "encoding/json"

// DefaultImage is the image of a spec that names none.
const DefaultImage = "rockchin/langbot-sandbox:latest"

// MountSpec is one directory of the host in a box.
type MountSpec struct {
	HostPath  string `json:"host_path"`
	MountPath string `json:"mount_path"`
	Mode      string `json:"mode"` // none, ro or rw
}

// BoxSpec is what a client says of a session, and of a command in it.
type BoxSpec struct {
	SessionID        string            `json:"session_id"`
	Cmd              string            `json:"cmd"`
	Workdir          string            `json:"workdir"`
	TimeoutSec       int64             `json:"timeout_sec"`
	Network          string            `json:"network"` // off or on
	Env              map[string]string `json:"env"`
	Image            string            `json:"image"`
	HostPath         *string           `json:"host_path"`
	HostPathMode     string            `json:"host_path_mode"` // none, ro or rw
	MountPath        string            `json:"mount_path"`
	ExtraMounts      []MountSpec       `json:"extra_mounts"`
	SkillName        *string           `json:"skill_name"`
	Persistent       bool              `json:"persistent"`
	CPUs             float64           `json:"cpus"`
	MemoryMB         int64             `json:"memory_mb"`
	PidsLimit        int64             `json:"pids_limit"`
	ReadOnlyRootfs   bool              `json:"read_only_rootfs"`
	WorkspaceQuotaMB int64             `json:"workspace_quota_mb"`
}

// ParseBoxSpec reads and checks a spec; forExec demands a command. Errors are
// of class BoxValidation.
func ParseBoxSpec(data json.RawMessage, forExec bool) (BoxSpec, error) {
	return BoxSpec{}, nil
}
