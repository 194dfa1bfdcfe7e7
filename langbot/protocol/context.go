package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// Context identifies the workspace for which an action is performed.
type Context struct {
	Instance   string `json:"instance"`
	Workspace  string `json:"workspace"`
	Generation int64  `json:"generation"`
}

// WorkspaceKey identifies a workspace of an instance, whatever the lengths of their names.
type WorkspaceKey [sha256.Size]byte

// KeyOf returns the key of a workspace.
func KeyOf(instance, workspace string) WorkspaceKey {
	return sha256.Sum256([]byte(instance + "\x00" + workspace))
}

// Namespace returns the name for the durable data of the workspace, which all generations
// share.
func (c Context) Namespace() string {
	key := KeyOf(c.Instance, c.Workspace)
	return "ws-" + hex.EncodeToString(key[:12])
}

// Runtime returns the name for everything that lives as long as the generation.
func (c Context) Runtime() string {
	return c.Namespace() + "-g" + strconv.FormatInt(c.Generation, 10)
}

// Physical returns the name that a session with this logical ID has everywhere except in
// replies. Different logical IDs can have the same physical name.
func (c Context) Physical(id string) (string, error) {
	s := safe(id)
	if s == "" {
		return "", Errorf(ValueError, "session_id %q has no letter or digit in it: use at least one of A-Z a-z 0-9 _ .", id)
	}
	return c.Runtime() + "-" + s, nil
}

// Logical returns the ID that replies show for a physical name: the name without the prefix
// that Physical adds.
func (c Context) Logical(physical string) string {
	return strings.TrimPrefix(physical, c.Runtime()+"-")
}

// Owns reports whether physical belongs to this workspace and generation.
func (c Context) Owns(physical string) bool {
	return strings.HasPrefix(physical, c.Runtime()+"-")
}

// safe replaces each run of characters that a name cannot contain by one "-".
func safe(id string) string {
	var b strings.Builder
	run := false
	for _, r := range Trim(id) {
		if r < 128 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_' || r == '.' || r == '-') {
			b.WriteByte(byte(r))
			run = false
			continue
		}
		if !run {
			b.WriteByte('-')
		}
		run = true
	}
	return strings.Trim(b.String(), "-")
}
