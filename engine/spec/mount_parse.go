package spec

import (
	"path"
	"strings"
)

// ParseMount reads SOURCE:TARGET[:ro|rw], the form of docker -v and podman -v with
// absolute paths. The result is valid in the sense of [Mount.Validate]. Errors
// are of type *[FieldError].
//
// Paths that contain a colon cannot be written this way; a Mount can hold them.
func ParseMount(s string) (Mount, error) {
	fields := strings.Split(s, ":")
	if len(fields) < 2 || len(fields) > 3 {
		return Mount{}, refuse("mount", QuotePath(s), `must be SOURCE:TARGET with an optional ":ro" or ":rw", such as /srv/data:/data:ro`)
	}
	m := Mount{Source: fields[0], Target: fields[1]}
	if len(fields) == 3 {
		if fields[2] != "ro" && fields[2] != "rw" {
			return Mount{}, refuse("mount option", QuotePath(fields[2]), "must be ro or rw")
		}
		m.ReadOnly = fields[2] == "ro"
	}
	// A trailing slash is forgiven, a ".." is left for Validate to refuse.
	if path.IsAbs(m.Target) && !hasDotDot(m.Target) {
		m.Target = path.Clean(m.Target)
	}
	if err := m.Validate(); err != nil {
		return Mount{}, err
	}
	return m, nil
}

// String is the form that [ParseMount] reads, with ":ro" if m is read-only.
func (m Mount) String() string {
	s := m.Source + ":" + m.Target
	if m.ReadOnly {
		s += ":ro"
	}
	return s
}
