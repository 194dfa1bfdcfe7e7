package spec

import "strings"

// Reference names an image of a registry, or one that was imported under such a name. Its text
// follows the grammar of github.com/distribution/reference.
type Reference struct {
	// Repository includes the registry: "docker.io/library/python". It is empty if only
	// the digest is given.
	Repository string
	Tag        string // empty with a digest, which alone decides
	Digest     string // "sha256:" and 64 hexadecimal digits; empty: the tag decides
}

// Registries of references without one, and the repository of their official images.
const (
	defaultRegistry = "docker.io"
	officialImages  = "library"
	defaultTag      = "latest"
	digestPrefix    = "sha256:"
)

// maxReference bounds a reference in bytes, as [Spec].Image is bounded.
const maxReference = 512

// ParseReference reads a reference as people write it: "python:3.12" is
// docker.io/library/python:3.12, and "a/b" is docker.io/a/b:latest. A tag beside a digest is
// dropped. It returns false if s is no reference.
func ParseReference(s string) (r Reference, ok bool) {
	if len(s) > maxReference {
		return r, false
	}
	if isDigest(s) {
		return Reference{Digest: s}, true
	}
	name, digest, pinned := strings.Cut(s, "@")
	if pinned && !isDigest(digest) {
		return r, false
	}
	tag, tagged := "", false
	if at := strings.LastIndexByte(name, ':'); at > strings.LastIndexByte(name, '/') {
		name, tag, tagged = name[:at], name[at+1:], true
	}
	switch {
	case tagged && !isTag(tag):
		return r, false
	case pinned:
		tag = ""
	case !tagged:
		tag = defaultTag
	}
	registry, path, found := strings.Cut(name, "/")
	if !found || !IsRegistry(registry) || !strings.ContainsAny(registry, ".:") && registry != "localhost" {
		registry, path = defaultRegistry, name
	}
	switch registry = strings.ToLower(registry); registry {
	case "index." + defaultRegistry, "registry-1." + defaultRegistry:
		registry = defaultRegistry
	}
	if registry == defaultRegistry && !strings.Contains(path, "/") {
		path = officialImages + "/" + path
	}
	for part := range strings.SplitSeq(path, "/") {
		if !isPathPart(part) {
			return r, false
		}
	}
	r = Reference{registry + "/" + path, tag, digest}
	return r, len(r.String()) <= maxReference
}

// String returns the full reference, which ParseReference reads as the same.
func (r Reference) String() string {
	switch {
	case r.Repository == "":
		return r.Digest
	case r.Digest != "":
		return r.Repository + "@" + r.Digest
	}
	return r.Repository + ":" + r.Tag
}

// CheckReference reads the reference of an image to pull or import. It has a repository: a digest alone names an image
// of a store only. It is not [HostImage], by which no session could ask for the image. Errors are of type *[FieldError].
func CheckReference(field, s string) (Reference, error) {
	if s == HostImage {
		return Reference{}, refuse(field, Quote(s), "means the host's own system directories: choose another name, or write docker.io/library/host")
	}
	r, ok := ParseReference(s)
	if !ok || r.Repository == "" {
		return Reference{}, refuse(field, Quote(s), "must be a reference such as python:3.12, ghcr.io/NAME:TAG or NAME@sha256:DIGEST, with a path in lower case")
	}
	return r, nil
}

// Registry is the host of the reference, with its port if it has one: "docker.io", "127.0.0.1:5000".
func (r Reference) Registry() string {
	host, _, _ := strings.Cut(r.Repository, "/")
	return host
}

// CheckImage returns the image of a session in its full form: "host", or a reference. Errors
// are of type *[FieldError].
func CheckImage(field, image string) (string, error) {
	if image == HostImage {
		return image, nil
	}
	r, ok := ParseReference(image)
	if !ok {
		return "", refuse(field, Quote(image), `must be "host", or a reference such as python:3.12, ghcr.io/NAME:TAG or NAME@sha256:DIGEST`)
	}
	return r.String(), nil
}

// IsRegistry reports whether s is the host of a registry, with a port or without.
func IsRegistry(s string) bool {
	host, port, found := strings.Cut(s, ":")
	if found && (port == "" || len(port) > 5 || !only(port, "0123456789")) {
		return false
	}
	return host != "" && isHostname(host)
}

func isDigest(s string) bool {
	hex, found := strings.CutPrefix(s, digestPrefix)
	return found && IsLayerID(hex)
}

func isTag(s string) bool {
	return s != "" && len(s) <= 128 && only(s, alnum+"_.-") && s[0] != '.' && s[0] != '-'
}

// isPathPart applies the rule for a component of a repository: runs of lower-case letters and
// digits, separated by ".", "_", "__" or any number of "-".
func isPathPart(s string) bool {
	if s == "" || !only(s, lowerDigits+"._-") || strings.Trim(s, "._-") != s {
		return false
	}
	for _, separator := range strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(lowerDigits, r) }) {
		if separator != "." && separator != "_" && separator != "__" && strings.Trim(separator, "-") != "" {
			return false
		}
	}
	return true
}
