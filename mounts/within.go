package mounts

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/pathin"
)

// upper is the mount of NoLinks, if there is one: the part of the way to the source that
// may pass symlinks.
func upper(m spec.Mount) spec.Mount {
	if m.NoLinks != "" {
		m.Source, m.NoLinks = m.NoLinks, ""
	}
	return m
}

// resolveNoLinks is resolve for a source on the way to which boxes have written, from
// NoLinks on.
func (r Root) resolveNoLinks(m spec.Mount) (*os.File, error) {
	if r.dir != nil && pathin.In(r.Path, m.NoLinks) {
		m.NoLinks = r.Path // the way to it is root's
	}
	rel, err := spec.Beneath(spec.MountNoLinks, m.NoLinks, m.Source)
	if err != nil {
		return nil, err
	}
	dir, err := r.resolve(upper(m))
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
		return nil, refuse(spec.MountSource, m.Source, "passes a symlink in the directory %s, name the real path", spec.QuotePath(m.NoLinks)).Because(err)
	case errors.Is(err, unix.EXDEV):
		return nil, refuse(spec.MountSource, m.Source, `leaves the directory %s by "..", or passes a mount`, spec.QuotePath(m.NoLinks)).Because(err)
	case err != nil:
		return nil, explainOpen(m.Source, err)
	}
	return f, nil
}
