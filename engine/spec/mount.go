package spec

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// Mount makes a directory or regular file of the host, or of a volume, visible in a box.
// It is a pure value: package mounts opens it.
type Mount struct {
	// Source is the absolute path on the host. Symlinks in it are resolved
	// once, by descriptor.
	Source string `json:"source"`
	// Target is the absolute, cleaned path in the box; never "/" itself.
	Target string `json:"target"`
	// ReadOnly forbids writes through this mount.
	ReadOnly bool `json:"read_only,omitempty"`
	// Within is a cleaned absolute path of a directory of the host. The source must be
	// this directory or lie beneath it, as it is written and as it resolves: a ".." or a
	// symlink that leads out is refused, and so is any absolute symlink. Empty: the
	// source may lie anywhere that is not denied.
	Within string `json:"within,omitempty"`
	// NoLinks is a cleaned absolute path of a directory of the host. The source must be
	// this directory or lie beneath it. Boxes may have written there, so below it no
	// symlink and no mount is followed. It lies in Within. Empty: symlinks are followed.
	NoLinks string `json:"no_links,omitempty"`
	// Volume is the name of a volume. Source is then a cleaned path in it without
	// symlinks, where "/" is the whole volume, and Within and NoLinks are empty. Empty:
	// Source is a path of the host.
	Volume string `json:"volume,omitempty"`
	// Layer is the name of an unpublished layer, which is mounted for writing, or the ID of a
	// published one, which is mounted with ReadOnly. Source is then "/"; Within, NoLinks and
	// Volume are empty, and Users is false. Only a box with Unpacks mounts layers, and only
	// when it is created. Files belong to the users of the box as they will in the boxes that
	// have the layer in their root.
	Layer string `json:"layer,omitempty"`
	// Users lets every user of the box write, not only the user as whom the owner of the
	// source appears. On disk, files of the others belong to ids that neither a box nor a
	// user of the host has. So it is meant for directories that the caller keeps for boxes.
	Users bool `json:"users,omitempty"`
}

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
	// A trailing slash is accepted; Validate refuses a "..".
	if path.IsAbs(m.Target) && !hasDotDot(m.Target) {
		m.Target = path.Clean(m.Target)
	}
	if err := m.Validate(); err != nil {
		return Mount{}, err
	}
	return m, nil
}

// String returns the form that [ParseMount] reads, with ":ro" if m is read-only.
func (m Mount) String() string {
	s := m.Source + ":" + m.Target
	if m.ReadOnly {
		s += ":ro"
	}
	return s
}

// Bounds of mounts.
const (
	// MaxMounts is how many mounts a box can have. One that unpacks can have MaxLayers.
	MaxMounts = 64
	// MaxVolumeName is the length of a volume's name in bytes.
	MaxVolumeName = 64

	maxName = 255 // bytes of one component: NAME_MAX
)

// Fields of a [FieldError] about one mount. [InMount] adds which mount it is.
const (
	MountSource  = "mount source"
	MountTarget  = "mount target"
	MountWithin  = "mount within"
	MountNoLinks = "mount no_links"
	MountVolume  = "mount volume"
	MountLayer   = "mount layer"
)

// Validate checks the shape of m without touching the kernel. Package mounts checks the
// source when it opens it; package policy decides who may mount it.
func (m Mount) Validate() error {
	if err := CheckMountPath(MountSource, m.Source); err != nil {
		return err
	}
	if m.Layer != "" {
		if err := m.validateLayer(); err != nil {
			return err
		}
	}
	if m.Volume != "" {
		if err := m.ValidateVolume(); err != nil {
			return err
		}
	}
	upper := m.Source // the part of the path that may contain symlinks
	if m.NoLinks != "" {
		if _, err := Beneath(MountNoLinks, m.NoLinks, m.Source); err != nil {
			return err
		}
		upper = m.NoLinks
	}
	if m.Within != "" {
		if _, err := Beneath(MountWithin, m.Within, upper); err != nil {
			return err
		}
	}
	return CheckTarget(m.Target)
}

// ValidateVolume checks a source in a volume.
func (m Mount) ValidateVolume() error {
	if !IsVolumeName(m.Volume) {
		return refuse(MountVolume, QuotePath(m.Volume), `must be 1 to %d of a-z, 0-9 and "-", starting with a letter or digit`, MaxVolumeName)
	}
	if m.Within != "" {
		return refuse(MountWithin, QuotePath(m.Within), "must be empty for a source in a volume, which is never left anyway")
	}
	if m.NoLinks != "" {
		return refuse(MountNoLinks, QuotePath(m.NoLinks), "must be empty for a source in a volume, where no symlink is passed anyway")
	}
	if err := CheckMountPath(MountSource, m.Source); err != nil {
		return err
	}
	if clean := path.Clean(m.Source); m.Source != clean {
		return refuse(MountSource, QuotePath(m.Source), "must be written as %q in a volume", clean)
	}
	return nil
}

const layerIDRule = "must be 64 hexadecimal digits in lower case"

func (m Mount) validateLayer() error {
	published := IsLayerID(m.Layer)
	switch {
	case !published && !IsLayerName(m.Layer):
		return refuse(MountLayer, QuotePath(m.Layer), `must be an ID, 64 hexadecimal digits in lower case; or a name, 1 to %d of a-z, 0-9 and "-", starting with a letter or digit`, MaxVolumeName)
	case m.Source != "/":
		return refuse(MountSource, QuotePath(m.Source), `must be "/", the whole layer`)
	case m.Volume != "" || m.Within != "" || m.NoLinks != "" || m.Users:
		return refuse(MountLayer, QuotePath(m.Layer), "must come without volume, within, no_links and users")
	case published != m.ReadOnly:
		return refuse("mount read_only", fmt.Sprint(m.ReadOnly), "must be true for a published layer, and false for one that is being written")
	}
	return nil
}

// IsVolumeName reports whether a volume can be called name.
func IsVolumeName(name string) bool {
	return name != "" && len(name) <= MaxVolumeName && name[0] != '-' && only(name, lowerDigits+"-")
}

// validateMounts checks each mount and the set: at most limit, no target twice. field is the
// name of the list.
func validateMounts(field string, list []Mount, limit int) error {
	seen := make(map[string]bool, len(list))
	for i, m := range list {
		if err := m.Validate(); err != nil {
			return InMount(fmt.Sprintf("%s[%d]", field, i), err)
		}
	}
	if len(list) > limit {
		return refuse(field, strconv.Itoa(len(list)), "must be at most %d", limit)
	}
	for _, m := range list {
		if seen[m.Target] {
			return refuse(field+".target", QuotePath(m.Target), "is used by two mounts, each needs its own")
		}
		seen[m.Target] = true
	}
	return nil
}

// InMount adds to a [FieldError] which mount it is about: with "mounts[1]" its field "mount
// source" becomes "mounts[1].source".
func InMount(which string, err error) error {
	bad, ok := errors.AsType[*FieldError](err)
	if !ok {
		return fmt.Errorf("%s: %w", which, err)
	}
	named := *bad
	named.Field = which
	if part, ok := strings.CutPrefix(bad.Field, "mount "); ok {
		named.Field += "." + part
	}
	return &named
}

// InOrder returns ms with outer targets before those inside them (/data before
// /data/in), the order in which they must be attached. Detaching goes backwards.
func InOrder(ms []Mount) []Mount {
	return slices.SortedStableFunc(slices.Values(ms), func(a, b Mount) int {
		return strings.Count(a.Target, "/") - strings.Count(b.Target, "/")
	})
}

// CheckMountPath checks a source or target of a mount.
func CheckMountPath(field, p string) error {
	switch {
	case p == "":
		return refuse(field, `""`, "must not be empty")
	case !path.IsAbs(p):
		return refuse(field, QuotePath(p), "must be an absolute path")
	case len(p) > maxPath:
		return refuse(field, QuotePath(p), "is %d bytes long, must be at most %d", len(p), maxPath)
	case strings.ContainsFunc(p, isControl):
		return refuse(field, QuotePath(p), "must not contain control characters")
	}
	for name := range strings.SplitSeq(p, "/") {
		if len(name) > maxName {
			return refuse(field, QuotePath(p), "has a component of %d bytes, must be at most %d", len(name), maxName)
		}
	}
	return nil
}

// CheckTarget checks the target of a mount, the path in the box.
func CheckTarget(p string) error {
	if err := CheckMountPath(MountTarget, p); err != nil {
		return err
	}
	bad := func(rule string, args ...any) error { return refuse(MountTarget, QuotePath(p), rule, args...) }
	switch clean := path.Clean(p); {
	case hasDotDot(p):
		return bad(`must not contain ".."`)
	case clean == "/":
		return bad("must not be the root of the box")
	case clean != p:
		return bad("must be written as %q", clean)
	}
	// The confinement of a box rests on its kernel interfaces, whose files are masked
	// one by one. Nothing may be mounted over them.
	for _, own := range []string{"/proc", "/dev", "/sys"} {
		if p == own || strings.HasPrefix(p, own+"/") {
			return bad("must not be %s or below, which belongs to boxd", own)
		}
	}
	// Package policy decides on single files such as /etc/app.conf.
	if p == "/etc" {
		return bad("must not be /etc itself, mount single files below it")
	}
	return nil
}

// Beneath returns source as a path relative to dir, which must be a cleaned path above
// it; field is the name of dir. It keeps every ".." for the kernel, because a may be a
// symlink in "a/..".
func Beneath(field, dir, source string) (string, error) {
	if err := CheckMountPath(field, dir); err != nil {
		return "", err
	}
	if clean := path.Clean(dir); dir != clean {
		return "", refuse(field, QuotePath(dir), "must be written as %q", clean)
	}
	names := PathComponents(source)
	for _, name := range PathComponents(dir) {
		if len(names) == 0 || names[0] != name {
			return "", refuse(MountSource, QuotePath(source), "must lie in the directory %s", QuotePath(dir))
		}
		names = names[1:]
	}
	rel := "./" + strings.Join(names, "/")
	if strings.HasSuffix(source, "/") {
		rel += "/" // keeps the demand for a directory
	}
	return rel, nil
}

// PathComponents returns the names of a path without "" and ".".
func PathComponents(p string) []string {
	return slices.DeleteFunc(strings.Split(p, "/"), func(name string) bool { return name == "" || name == "." })
}

// isControl also finds NUL. C1 controls are bytes of UTF-8 text in a path and
// are quoted wherever a path is shown.
func isControl(r rune) bool { return r < 0x20 || r == 0x7f }

// hasDotDot reports whether a component of p is "..".
func hasDotDot(p string) bool { return slices.Contains(strings.Split(p, "/"), "..") }
