package mounts

import (
	"errors"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

const fieldWithin = "mount within"

// beneath returns the source as a path relative to Within, of which it keeps each
// ".." for the kernel to judge: whether "a/.." leads back depends on what a is.
func (m Mount) beneath() (string, error) {
	if err := checkPath(fieldWithin, m.Within); err != nil {
		return "", err
	}
	if m.Within != path.Clean(m.Within) {
		return "", refuse(fieldWithin, m.Within, "must be written as %q", path.Clean(m.Within))
	}
	names := components(m.Source)
	for _, name := range components(m.Within) {
		if len(names) == 0 || names[0] != name {
			return "", refuse(fieldSource, m.Source, "must lie in the directory %s", quote(m.Within))
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

// openWithin opens the directory that must not be left.
func openWithin(m Mount) (*os.File, error) {
	dir, err := linux.Openat2(nil, m.Within, unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY,
		Resolve: unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, refuse(fieldWithin, m.Within, "must be a directory that can be opened: %s", rootCause(err)).because(err)
	}
	return dir, nil
}

// resolveWithin is resolve with a directory that must not be left. That directory is
// the operator's, and symlinks to it are followed.
func resolveWithin(m Mount) (*os.File, error) {
	rel, err := m.beneath()
	if err != nil {
		return nil, err
	}
	dir, err := openWithin(m)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	f, err := linux.Openat2(dir, rel, unix.OpenHow{
		Flags:   unix.O_PATH,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
	// openat2(2): EXDEV is a way out of dir, and also an absolute symlink.
	if errors.Is(err, unix.EXDEV) {
		return nil, refuse(fieldSource, m.Source, `leaves the directory %s, in which it must lie, by ".." or a symlink (an absolute one counts wherever it leads)`,
			quote(m.Within)).because(err)
	}
	if err != nil {
		return nil, explainOpen(m.Source, err)
	}
	return f, nil
}
