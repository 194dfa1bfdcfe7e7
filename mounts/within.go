package mounts

import (
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/pathin"
)

const (
	fieldWithin  = "mount within"
	fieldNoLinks = "mount no_links"
	fieldRoot    = "mount root"
)

// upper is the mount of NoLinks, if there is one: the part of the way to the source that
// may pass symlinks.
func (m Mount) upper() Mount {
	if m.NoLinks != "" {
		m.Source, m.NoLinks = m.NoLinks, ""
	}
	return m
}

// beneath returns the source as a path relative to dir, of which it keeps each
// ".." for the kernel to judge: whether "a/.." leads back depends on what a is.
func (m Mount) beneath(field, dir string) (string, error) {
	if err := checkPath(field, dir); err != nil {
		return "", err
	}
	if dir != path.Clean(dir) {
		return "", refuse(field, dir, "must be written as %q", path.Clean(dir))
	}
	names := components(m.Source)
	for _, name := range components(dir) {
		if len(names) == 0 || names[0] != name {
			return "", refuse(fieldSource, m.Source, "must lie in the directory %s", quote(dir))
		}
		names = names[1:]
	}
	rel := "./" + strings.Join(names, "/")
	if strings.HasSuffix(m.Source, "/") {
		rel += "/" // it must be a directory
	}
	return rel, nil
}

// components are the names of a path without "" and ".".
func components(p string) []string {
	var names []string
	for name := range strings.SplitSeq(p, "/") {
		if name != "" && name != "." {
			names = append(names, name)
		}
	}
	return names
}

// resolveNoLinks is resolve for a source on the way to which boxes have written, from
// NoLinks on.
func (r Root) resolveNoLinks(m Mount) (*os.File, error) {
	if r.dir != nil && pathin.In(r.Path, m.NoLinks) {
		m.NoLinks = r.Path // the way to it is root's
	}
	rel, err := m.beneath(fieldNoLinks, m.NoLinks)
	if err != nil {
		return nil, err
	}
	dir, err := r.resolve(m.upper())
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := linux.Openat2(dir, rel, unix.OpenHow{
		Flags:   unix.O_PATH,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	switch {
	case errors.Is(err, unix.ELOOP):
		return nil, refuse(fieldSource, m.Source, "passes a symlink in the directory %s, name the real path", quote(m.NoLinks)).because(err)
	case errors.Is(err, unix.EXDEV):
		return nil, refuse(fieldSource, m.Source, `leaves the directory %s by "..", or passes a mount`, quote(m.NoLinks)).because(err)
	case err != nil:
		return nil, explainOpen(m.Source, err)
	}
	return f, nil
}
