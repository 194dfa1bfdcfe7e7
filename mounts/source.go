package mounts

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
)

// Source is the directory or file behind a mount, resolved once and checked.
// It stays the same whatever happens to the path afterwards.
type Source struct {
	File     *os.File // O_PATH, owned by the Source
	Path     string   // where it really is, without symlinks; for people and allow-lists
	UID, GID uint32   // its owner
	IsDir    bool     // else it is a regular file
	place    place
}

// Open resolves the source of m, following symlinks but not the magic links of
// /proc, and decides on what it found: a directory or a regular file that is
// outside of every tree in deny (see [DefaultDeny] for the rules). The caller
// closes the Source. With m.Within it does not leave that directory on the way,
// whatever others do to the path meanwhile; with m.NoLinks it follows no symlink from there
// on. Errors are of type [*spec.FieldError] if m breaks a rule.
//
// Hard links cannot be told from the file: that a user cannot link files of
// others is up to the host's fs.protected_hardlinks.
func Open(m spec.Mount, deny []string) (*Source, error) { return Root{}.Open(m, deny) }

// Open is [Open] for a source that lies in r.
func (r Root) Open(m spec.Mount, deny []string) (*Source, error) {
	if err := spec.CheckMountPath(spec.MountSource, m.Source); err != nil {
		return nil, err
	}
	if m.Volume != "" {
		return nil, refuse(spec.MountVolume, m.Volume, "there are no volumes here, only directories of the host")
	}
	f, err := r.resolve(m)
	if err != nil {
		return nil, err
	}
	s, err := r.newSource(f, m.Source, deny)
	if err != nil {
		f.Close()
		return nil, err
	}
	return s, nil
}

// resolve returns an O_PATH descriptor of what m.Source leads to.
func (r Root) resolve(m spec.Mount) (*os.File, error) {
	if m.NoLinks != "" {
		return r.resolveNoLinks(m)
	}
	dir, name, err := r.bound(m)
	if err != nil {
		return nil, err
	}
	if dir == nil {
		f, err := r.open(m.Source, unix.O_PATH)
		if err != nil {
			return nil, explainOpen(m.Source, err)
		}
		return f, nil
	}
	defer dir.Close()
	rel, err := spec.Beneath(spec.MountWithin, name, m.Source)
	if err != nil {
		return nil, err
	}
	f, err := linux.Openat2(dir, rel, unix.OpenHow{
		Flags:   unix.O_PATH,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS,
	})
	// openat2(2): EXDEV is a way out of dir, and also an absolute symlink.
	if errors.Is(err, unix.EXDEV) {
		return nil, refuse(spec.MountSource, m.Source, `leaves the directory %s, in which it must lie, by ".." or a symlink (an absolute one counts wherever it leads)`,
			spec.QuotePath(name)).Because(err)
	}
	if err != nil {
		return nil, explainOpen(m.Source, err)
	}
	return f, nil
}

// newSource checks f, which name led to.
func (r Root) newSource(f *os.File, name string, deny []string) (*Source, error) {
	st, err := linux.Fstat(f)
	if err != nil {
		return nil, err
	}
	if kind := kindOf(st.Mode); kind != "" {
		return nil, refuse(spec.MountSource, name, "is a %s, must be a directory or a regular file", kind)
	}
	if err := r.allow(st); err != nil {
		return nil, err
	}
	table, err := readMountTable()
	if err != nil {
		return nil, err
	}
	p, err := locate(f, table)
	if err != nil {
		return nil, refuse(spec.MountSource, name, "cannot be located: %v", err).Because(err)
	}
	if err := checkDenied(p, name, deny, table); err != nil {
		return nil, err
	}
	return &Source{
		File: f, Path: p.path, UID: st.Uid, GID: st.Gid,
		IsDir: st.Mode&unix.S_IFMT == unix.S_IFDIR, place: p,
	}, nil
}

// Close closes the descriptor. Trees made from s stay.
func (s *Source) Close() error { return s.File.Close() }

// kindOf names what cannot be mounted; empty for directories and regular files.
func kindOf(mode uint32) string {
	switch mode & unix.S_IFMT {
	case unix.S_IFDIR, unix.S_IFREG:
		return ""
	case unix.S_IFSOCK:
		return "socket"
	case unix.S_IFIFO:
		return "FIFO"
	case unix.S_IFLNK:
		return "symlink"
	case unix.S_IFBLK, unix.S_IFCHR:
		return "device"
	}
	return "special file"
}

// explainOpen says what a person can do about a source that did not open.
func explainOpen(name string, err error) error {
	rule := "cannot be opened: " + rootCause(err)
	switch {
	case errors.Is(err, unix.ENOENT):
		rule = "does not exist"
	case errors.Is(err, unix.ENOTDIR):
		rule = "passes something that is not a directory"
	case errors.Is(err, unix.ELOOP):
		rule = "passes a link of /proc that is not a path, or too many symlinks"
	}
	return refuse(spec.MountSource, name, "%s", rule).Because(err)
}

// rootCause is the text of the errno in err.
func rootCause(err error) string {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno.Error()
	}
	return err.Error()
}
