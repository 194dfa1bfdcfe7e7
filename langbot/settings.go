package langbot

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path"
	"strings"

	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/langbot/protocol"
)

// settings are what an instance has said in box_init, over what the operator has. They
// are never changed, but replaced.
type settings struct {
	said   map[string]json.RawMessage // top-level keys of box_init, as they were merged
	limits protocol.Limits
	local  local
}

// settingsLocked are those of an instance. s.mu is held.
func (s *Server) settingsLocked(instance string) *settings {
	if own := s.settings[instance]; own != nil {
		return own
	}
	return s.base
}

// merged are the settings with what data says put over them: whole top-level keys, as the
// reference server does it. It changes nothing if something in data is wrong.
func (old *settings) merged(data json.RawMessage, roots []string) (*settings, error) {
	var said map[string]json.RawMessage
	if err := json.Unmarshal(data, &said); err != nil {
		return nil, protocol.Errorf(protocol.ValueError, "box_init: must be an object: %v", err)
	}
	next := &settings{said: map[string]json.RawMessage{}}
	for key, value := range old.said {
		next.said[key] = value
	}
	for _, key := range []string{"limits", "local", "admission"} { // all others mean nothing here
		if value, ok := said[key]; ok {
			next.said[key] = value
		}
	}
	var err error
	if next.limits, err = protocol.ParseLimits(next.said["limits"]); err != nil {
		return nil, err
	}
	if next.local, err = parseLocal(next.said["local"], roots); err != nil {
		return nil, err
	}
	return next, nil
}

// local is the part about directories of the host.
type local struct {
	// workspace is where an instance's shared workspaces are: absolute, or empty. within is
	// the one of the operator's roots that it lies in; empty: none.
	workspace, within string
	// narrowed are the directories in which the client itself allows mounts; nil: it has
	// said nothing, so the operator's roots count alone.
	narrowed []string
	// skills is the directory of the host for skills; empty: none is named, or noSkills says
	// why it is not used.
	skills, noSkills string
	// ignored are paths that mean nothing here because they are relative.
	ignored []string
}

// parseLocal reads the key "local" of box_init. Paths that are relative would depend on
// the directory that a server happens to run in; they are left out.
func parseLocal(raw json.RawMessage, roots []string) (l local, err error) {
	var said struct {
		HostRoot  *string         `json:"host_root"`
		Workspace *string         `json:"default_workspace"`
		Skills    *string         `json:"skills_root"`
		Allowed   json.RawMessage `json:"allowed_mount_roots"`
	}
	if len(raw) == 0 || string(raw) == "null" {
		return l, nil
	}
	if err := json.Unmarshal(raw, &said); err != nil {
		return l, protocol.Errorf(protocol.ValueError, "box.local: %v", err)
	}
	root := l.absolute(text(said.HostRoot), "")
	switch workspace := text(said.Workspace); {
	case workspace != "":
		l.workspace = l.absolute(workspace, root)
	case root != "":
		l.workspace = path.Join(root, "default")
	}
	allowed, err := listOrCommas(said.Allowed)
	if err != nil {
		return l, err
	}
	for _, name := range allowed {
		if dir := l.absolute(name, ""); dir != "" {
			l.narrowed = append(l.narrowed, dir)
		}
	}
	own := l.narrowed
	if own == nil && root != "" {
		own = []string{root} // what the client means if it says nothing
	}
	if l.workspace != "" && (own == nil || rootOf(l.workspace, own) != "") {
		l.within = rootOf(l.workspace, roots)
	}
	l.nameSkills(text(said.Skills), root, roots)
	return l, nil
}

// nameSkills takes the directory for skills: skills_root, or "skills" below host_root. What
// the client allows to be mounted has no say in it, as in the reference server; what the
// operator allows decides.
func (l *local) nameSkills(said, root string, roots []string) {
	if said == "" && root == "" {
		return
	}
	dir := l.absolute(cmp.Or(said, "skills"), root)
	switch {
	case dir == "":
		l.noSkills = fmt.Sprintf("box.local.skills_root %q is relative, and so is host_root", said)
	case rootOf(dir, roots) == "":
		l.noSkills = fmt.Sprintf("%q is outside of the operator's allowed_mount_roots %q", dir, roots)
	case l.workspace != "" && pathin.In(dir, l.workspace):
		l.noSkills = fmt.Sprintf("%q is in default_workspace %q, in which boxes write", dir, l.workspace)
	default:
		l.skills = dir
	}
}

// absolute is name, cleaned, below root if it is relative; empty, and noted, if that is
// relative too.
func (l *local) absolute(name, root string) string {
	switch {
	case name == "":
		return ""
	case path.IsAbs(name):
		return path.Clean(name)
	case root != "":
		return path.Join(root, name)
	}
	l.ignored = append(l.ignored, name)
	return ""
}

func text(s *string) string {
	if s == nil {
		return ""
	}
	return strings.TrimSpace(*s)
}

// listOrCommas reads a list of strings, or one string with commas.
func listOrCommas(raw json.RawMessage) ([]string, error) {
	var list []string
	var one string
	switch {
	case len(raw) == 0 || string(raw) == "null":
		return nil, nil
	case json.Unmarshal(raw, &one) == nil:
		list = strings.Split(one, ",")
	case json.Unmarshal(raw, &list) != nil:
		return nil, protocol.Errorf(protocol.ValueError, "box.local.allowed_mount_roots: must be a list of paths, or one string with commas")
	}
	out := list[:0]
	for _, name := range list {
		if name = strings.TrimSpace(name); name != "" {
			out = append(out, name)
		}
	}
	return out, nil
}

// initial are the settings that every instance starts with: what the operator has put into
// the environment, or the defaults if that cannot be used.
func (s *Server) initial() *settings {
	base := &settings{limits: protocol.DefaultLimits()}
	if s.o.Init == "" {
		return base
	}
	next, err := base.merged(json.RawMessage(s.o.Init), s.o.Roots)
	if err != nil {
		s.log.Warn("LANGBOT_BOX_CONFIG is ignored, but for its key admission", "error", err)
		var said map[string]json.RawMessage
		_ = json.Unmarshal([]byte(s.o.Init), &said) // then there is none
		if raw, ok := said["admission"]; ok {
			base.said = map[string]json.RawMessage{"admission": raw}
		}
		return base
	}
	return next
}

// describe is what the log says of settings.
func (st *settings) describe() string {
	return fmt.Sprintf("default_workspace %q, skills_root %q, allowed_mount_roots %q, max_sessions %d", st.local.workspace, st.local.skills, st.local.narrowed, st.limits.MaxSessions)
}
