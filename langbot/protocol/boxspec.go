package protocol

import (
	"encoding/json"
	"unicode"
	"unicode/utf8"

	"github.com/boxd/boxd/internal/pathin"
)

// Defaults of a spec.
const (
	DefaultImage     = "rockchin/langbot-sandbox:latest"
	DefaultMountPath = "/workspace"
)

// MountSpec is one directory of the host in a box.
type MountSpec struct {
	HostPath  string `json:"host_path"`
	MountPath string `json:"mount_path"`
	Mode      string `json:"mode"` // none, ro or rw
}

// BoxSpec is a client's request for a session, and for a command in it.
type BoxSpec struct {
	SessionID        string            `json:"session_id"`
	Cmd              string            `json:"cmd"`
	Workdir          string            `json:"workdir"`
	TimeoutSec       int64             `json:"timeout_sec"` // at least 1, with no upper bound
	Network          string            `json:"network"`     // off or on
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

// ParseBoxSpec parses and checks a spec; with forExec it must contain a command. Errors are
// of class BoxValidation.
func ParseBoxSpec(data json.RawMessage, forExec bool) (BoxSpec, error) {
	s := BoxSpec{
		TimeoutSec: 30, Network: "off", Image: DefaultImage, HostPathMode: "rw", MountPath: DefaultMountPath,
		CPUs: 1, MemoryMB: 512, PidsLimit: 128, ReadOnlyRootfs: true,
	}
	m := object(data)
	for m.next() {
		f := field{BoxValidation, string(m.name), m.value}
		if err := s.set(f); err != nil {
			return BoxSpec{}, err
		}
	}
	if m.err != nil {
		return BoxSpec{}, Errorf(BoxValidation, "spec: %s: want an object", show(data))
	}
	if s.Workdir == "" {
		s.Workdir = s.MountPath
	}
	return s, s.check(forExec)
}

// set parses one member. It ignores unknown ones.
func (s *BoxSpec) set(f field) (err error) {
	switch f.name {
	case "session_id":
		s.SessionID, err = f.nonEmptyID()
	case "cmd":
		s.Cmd, err = f.trimmed()
	case "workdir":
		if s.Workdir = ""; !f.null() && string(f.raw) != `""` {
			s.Workdir, err = f.inside()
		}
	case "timeout_sec":
		s.TimeoutSec, err = f.integer(1)
	case "network":
		s.Network, err = f.oneOf("off", "on")
	case "env":
		s.Env, err = f.env()
	case "image":
		s.Image, err = f.short()
	case "host_path":
		s.HostPath, err = optional(f, field.host)
	case "host_path_mode":
		s.HostPathMode, err = f.oneOf("none", "ro", "rw")
	case "mount_path":
		s.MountPath, err = f.inside()
	case "extra_mounts":
		s.ExtraMounts, err = listOf(f, "mounts", field.mount)
	case "skill_name":
		s.SkillName, err = f.skill()
	case "persistent":
		s.Persistent, err = f.boolean()
	case "cpus":
		if s.CPUs, err = f.number(); err == nil && s.CPUs <= 0 {
			err = f.fail("must be greater than 0")
		}
	case "memory_mb":
		s.MemoryMB, err = f.integer(32)
	case "pids_limit":
		s.PidsLimit, err = f.integer(1)
	case "read_only_rootfs":
		s.ReadOnlyRootfs, err = f.boolean()
	case "workspace_quota_mb":
		s.WorkspaceQuotaMB, err = f.integer(0)
	}
	return err
}

// check applies the rules that involve more than one member.
func (s *BoxSpec) check(forExec bool) error {
	if s.SessionID == "" {
		return Errorf(BoxValidation, "session_id: is missing: it is required")
	}
	if forExec && s.Cmd == "" {
		return Errorf(BoxValidation, "cmd must not be empty")
	}
	if s.HostPath != nil && s.HostPathMode != "none" && !pathin.In(s.Workdir, s.MountPath) {
		return Errorf(BoxValidation, "workdir: %q: must be %q or below it when host_path is given", s.Workdir, s.MountPath)
	}
	if s.Env == nil {
		s.Env = map[string]string{}
	}
	if s.ExtraMounts == nil {
		s.ExtraMounts = []MountSpec{}
	}
	return nil
}

// optional returns nil for null.
func optional(f field, get func(field) (string, error)) (*string, error) {
	if f.null() {
		return nil, nil
	}
	s, err := get(f)
	if err != nil {
		return nil, err
	}
	return &s, nil
}

func (f field) mount() (s MountSpec, err error) {
	s.Mode = "rw"
	m := object(f.raw)
	for m.next() && err == nil {
		part := f.member(string(m.name), m.value)
		switch string(m.name) {
		case "host_path":
			s.HostPath, err = part.host()
		case "mount_path":
			s.MountPath, err = part.inside()
		case "mode":
			s.Mode, err = part.oneOf("none", "ro", "rw")
		}
	}
	switch {
	case err != nil:
		return s, err
	case m.err != nil:
		return s, f.fail("want an object")
	case s.HostPath == "" || s.MountPath == "":
		return s, f.fail("needs host_path and mount_path")
	}
	return s, nil
}

// skill parses the name of a skill. A blank name means none.
func (f field) skill() (*string, error) {
	s, err := optional(f, field.trimmed)
	if err != nil || s == nil || *s == "" {
		return nil, err
	}
	if !IsSkillName(*s) {
		return nil, f.fail("must be 1 to 64 letters, digits, - or _")
	}
	return s, nil
}

// IsSkillName reports whether s is a valid name of a skill: 1 to 64 letters of any script,
// digits, "-" and "_".
func IsSkillName(s string) bool {
	for _, r := range s {
		if r == utf8.RuneError || r != '-' && r != '_' && !unicode.IsLetter(r) && !unicode.IsNumber(r) {
			return false
		}
	}
	n := utf8.RuneCountInString(s)
	return n >= 1 && n <= 64
}
