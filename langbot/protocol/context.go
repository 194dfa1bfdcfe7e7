package protocol

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

// Context says on whose behalf an action is made.
type Context struct {
	Instance   string `json:"instance"`
	Workspace  string `json:"workspace"`
	Generation int64  `json:"generation"`
}

// Namespace names the durable data of the workspace, whatever its generation.
func (c Context) Namespace() string {
	sum := sha256.Sum256([]byte(c.Instance + "\x00" + c.Workspace))
	return "ws-" + hex.EncodeToString(sum[:12])
}

// Runtime names what lives as long as the generation.
func (c Context) Runtime() string {
	return c.Namespace() + "-g" + strconv.FormatInt(c.Generation, 10)
}

// Physical returns the name by which a session with this logical id is known
// everywhere but in replies. Different logical ids can have the same one.
func (c Context) Physical(id string) (string, error) {
	s := safe(id)
	if s == "" {
		return "", Errorf(ValueError, "session_id %q has no letter or digit in it: use at least one of A-Z a-z 0-9 _ .", id)
	}
	return c.Runtime() + "-" + s, nil
}

// Logical undoes Physical as far as replies do: it takes the prefix off.
func (c Context) Logical(physical string) string {
	return strings.TrimPrefix(physical, c.Runtime()+"-")
}

// Owns reports whether physical is a name of this workspace and generation.
func (c Context) Owns(physical string) bool {
	return strings.HasPrefix(physical, c.Runtime()+"-")
}

// safe replaces each run of characters that a name cannot have by one "-".
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
