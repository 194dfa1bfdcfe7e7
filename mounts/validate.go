package mounts

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/boxd/boxd/internal/pathin"
)

// Bounds. The kernel's PATH_MAX counts the final NUL (path_resolution(7)).
const (
	// MaxMounts is how many mounts a box can have.
	MaxMounts = 64

	// MaxVolumeName is the length of a volume's name in bytes.
	MaxVolumeName = 64

	maxPath = 4095
	maxName = 255
)

// Validate checks the shape of m without touching the kernel. What the source
// really is, is decided by [Open]; who may mount what, by policy. Errors are of
// type [*Error].
func (m Mount) Validate() error {
	if err := checkPath(fieldSource, m.Source); err != nil {
		return err
	}
	if m.Volume != "" {
		if err := m.checkVolume(); err != nil {
			return err
		}
	}
	if m.NoLinks != "" {
		if _, err := m.beneath(fieldNoLinks, m.NoLinks); err != nil {
			return err
		}
	}
	if m.Within != "" {
		if _, err := m.upper().beneath(fieldWithin, m.Within); err != nil {
			return err
		}
	}
	return checkTarget(m.Target)
}

// checkVolume holds the rules for a source that is in a volume.
func (m Mount) checkVolume() error {
	if !IsVolumeName(m.Volume) {
		return refuse(fieldVolume, m.Volume, `must be 1 to %d of a-z, 0-9 and "-", starting with a letter or digit`, MaxVolumeName)
	}
	if m.Within != "" {
		return refuse(fieldWithin, m.Within, "must be empty for a source in a volume, which is never left anyway")
	}
	if m.NoLinks != "" {
		return refuse(fieldNoLinks, m.NoLinks, "must be empty for a source in a volume, where no symlink is passed anyway")
	}
	if err := checkPath(fieldSource, m.Source); err != nil {
		return err
	}
	if m.Source != path.Clean(m.Source) {
		return refuse(fieldSource, m.Source, "must be written as %q in a volume", path.Clean(m.Source))
	}
	return nil
}

// IsVolumeName says whether name can be that of a volume.
func IsVolumeName(name string) bool {
	const lowerDigits = "abcdefghijklmnopqrstuvwxyz0123456789"
	return name != "" && len(name) <= MaxVolumeName && name[0] != '-' && strings.Trim(name, lowerDigits+"-") == ""
}

// ValidateAll checks each mount and the set: at most MaxMounts, no target twice.
func ValidateAll(ms []Mount) error {
	if len(ms) > MaxMounts {
		return &Error{Field: "mounts", Value: strconv.Itoa(len(ms)), Rule: fmt.Sprintf("must be at most %d", MaxMounts)}
	}
	seen := make(map[string]bool, len(ms))
	for _, m := range ms {
		if err := m.Validate(); err != nil {
			return err
		}
		if seen[m.Target] {
			return refuse(fieldTarget, m.Target, "is used by two mounts, each needs its own")
		}
		seen[m.Target] = true
	}
	return nil
}

// InOrder returns ms with outer targets before those inside them (/data before
// /data/in), the order in which they must be attached. Detaching goes backwards.
func InOrder(ms []Mount) []Mount {
	return slices.SortedStableFunc(slices.Values(ms), func(a, b Mount) int {
		return strings.Count(a.Target, "/") - strings.Count(b.Target, "/")
	})
}

// checkPath holds the rules for both paths of a mount.
func checkPath(field, p string) error {
	switch {
	case p == "":
		return refuse(field, p, "must not be empty")
	case !path.IsAbs(p):
		return refuse(field, p, "must be an absolute path")
	case len(p) > maxPath:
		return refuse(field, p, "is %d bytes long, must be at most %d", len(p), maxPath)
	case strings.ContainsFunc(p, isControl):
		return refuse(field, p, "must not contain control characters")
	}
	for name := range strings.SplitSeq(p, "/") {
		if len(name) > maxName {
			return refuse(field, p, "has a component of %d bytes, must be at most %d", len(name), maxName)
		}
	}
	return nil
}

// checkTarget holds the further rules for the path in the box.
func checkTarget(p string) error {
	if err := checkPath(fieldTarget, p); err != nil {
		return err
	}
	switch clean := path.Clean(p); {
	case hasDotDot(p):
		return refuse(fieldTarget, p, `must not contain ".."`)
	case clean == "/":
		return refuse(fieldTarget, p, "must not be the root of the box")
	case clean != p:
		return refuse(fieldTarget, p, "must be written as %q", clean)
	}
	// The box's own kernel interfaces are what its confinement rests on, and
	// their files are masked one by one: nothing may be put in front of them.
	for _, own := range []string{"/proc", "/dev", "/sys"} {
		if pathin.In(p, own) {
			return refuse(fieldTarget, p, "must not be %s or below, which belongs to boxd", own)
		}
	}
	// Single files such as /etc/app.conf are for policy to decide.
	if p == "/etc" {
		return refuse(fieldTarget, p, "must not be /etc itself, mount single files below it")
	}
	return nil
}

// isControl also finds NUL. C1 controls are bytes of UTF-8 text in a path and
// are quoted wherever a path is shown.
func isControl(r rune) bool { return r < 0x20 || r == 0x7f }

// hasDotDot says whether a component of p is "..".
func hasDotDot(p string) bool {
	return slices.Contains(strings.Split(p, "/"), "..")
}
