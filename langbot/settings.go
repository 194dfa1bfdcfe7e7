package langbot

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/langbot/protocol"
)

// settings are those of one instance: what it sent in box_init on top of the operator's. They
// are replaced, never changed.
type settings struct {
	said   map[string]json.RawMessage // the merged top-level keys of box_init
	limits protocol.Limits
	local  local
}

// settingsLocked returns the settings of an instance. s.mu is held.
func (s *Server) settingsLocked(instance string) *settings {
	if own := s.settings[instance]; own != nil {
		return own
	}
	return s.base
}

// merged returns the settings with those of data on top. Like the reference server, it replaces
// whole top-level keys.
func (old *settings) merged(data json.RawMessage, roots []string) (*settings, error) {
	var said map[string]json.RawMessage
	if err := json.Unmarshal(data, &said); err != nil {
		return nil, protocol.Errorf(protocol.ValueError, "box_init: must be an object: %v", err)
	}
	next := &settings{said: map[string]json.RawMessage{}}
	maps.Copy(next.said, old.said)
	for _, key := range []string{"limits", "local", "admission"} { // the others have no meaning here
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

// local is the part of box_init about directories of the host.
type local struct {
	// workspace is the absolute path of the directory that holds the instance's shared
	// workspaces, or empty. within is the one of the operator's roots that contains it, or empty.
	workspace, within string
	// narrowed are the directories in which the client itself allows mounts. If it is nil, only
	// the operator's roots count.
	narrowed []string
	// skills is the directory of the host for skills. If it is empty, none was named, or
	// noSkills says why it is not used.
	skills, noSkills string
	// ignored are relative paths, which have no meaning here.
	ignored []string
}

// parseLocal reads the key "local" of box_init. It leaves out relative paths, which would depend
// on the server's working directory.
func parseLocal(raw json.RawMessage, roots []string) (l local, err error) {
	var said struct {
		HostRoot  string          `json:"host_root"`
		Workspace string          `json:"default_workspace"`
		Skills    string          `json:"skills_root"`
		Allowed   json.RawMessage `json:"allowed_mount_roots"`
	}
	if len(raw) == 0 || string(raw) == "null" {
		return l, nil
	}
	if err := json.Unmarshal(raw, &said); err != nil {
		return l, protocol.Errorf(protocol.ValueError, "box.local: %v", err)
	}
	root := l.absolute(strings.TrimSpace(said.HostRoot), "")
	switch workspace := strings.TrimSpace(said.Workspace); {
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
		own = []string{root} // the client's default
	}
	if l.workspace != "" && (own == nil || rootOf(l.workspace, own) != "") {
		l.within = rootOf(l.workspace, roots)
	}
	l.nameSkills(strings.TrimSpace(said.Skills), root, roots)
	return l, nil
}

// nameSkills chooses the directory for skills: skills_root, or "skills" below host_root. Only
// the operator's roots restrict it: like the reference server, boxd disregards the client's own.
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

// absolute cleans name; a relative one is taken below root. Without a root, it returns "" and
// notes the name as ignored.
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

// listOrCommas reads a list of strings, or one string separated by commas.
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
	for i, name := range list {
		list[i] = strings.TrimSpace(name)
	}
	return slices.DeleteFunc(list, func(name string) bool { return name == "" }), nil
}

// initial returns the settings that every instance starts with: the operator's, or the defaults
// if those cannot be used.
func (s *Server) initial() *settings {
	base := &settings{limits: protocol.DefaultLimits()}
	if s.o.Init == "" {
		return base
	}
	next, err := base.merged(json.RawMessage(s.o.Init), s.o.Roots)
	if err != nil {
		s.log.Warn("LANGBOT_BOX_CONFIG is ignored, except for its key admission", "error", err)
		var said map[string]json.RawMessage
		_ = json.Unmarshal([]byte(s.o.Init), &said) // if this fails, there is no admission either
		if raw, ok := said["admission"]; ok {
			base.said = map[string]json.RawMessage{"admission": raw}
		}
		return base
	}
	return next
}
