package mounts

import (
	"errors"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/pathin"
)

// Source is the directory or file behind a mount, resolved once and checked.
// Later changes of the path do not affect it.
type Source struct {
	File     *os.File // O_PATH, owned by the Source
	Path     string   // the real path, without symlinks; for people and allow-lists
	UID, GID uint32   // its owner
	IsDir    bool     // otherwise it is a regular file
	place    place
}

// Open resolves the source of m, following symlinks but not the magic links of /proc,
// and checks the result: a directory or a regular file that is outside of every tree
// in deny (see [DefaultDeny] for the rules). The caller closes the Source. With
// m.Within, the path never leaves that directory, whatever others do to it meanwhile;
// with m.NoLinks, Open follows no symlink below that directory. Errors are of type
// [*spec.FieldError] if m breaks a rule.
//
// A hard link cannot be told from the original file. The host's fs.protected_hardlinks
// keeps users from linking files of others.
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
	return r.newSource(f, m.Source, deny)
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
	// openat2(2): EXDEV means that the path leaves dir, or has an absolute symlink.
	if errors.Is(err, unix.EXDEV) {
		return nil, refuse(spec.MountSource, m.Source, `leaves the directory %s, in which it must lie, by ".." or a symlink (an absolute one counts wherever it leads)`,
			spec.QuotePath(name)).Because(err)
	}
	if err != nil {
		return nil, explainOpen(m.Source, err)
	}
	return f, nil
}

// resolveNoLinks is resolve for a source in a directory, m.NoLinks, that boxes can write to.
// Only the path to that directory may pass symlinks.
func (r Root) resolveNoLinks(m spec.Mount) (*os.File, error) {
	if r.dir != nil && pathin.In(r.Path, m.NoLinks) {
		m.NoLinks = r.Path // only root can change the path to it
	}
	rel, err := spec.Beneath(spec.MountNoLinks, m.NoLinks, m.Source)
	if err != nil {
		return nil, err
	}
	upper := m
	upper.Source, upper.NoLinks = m.NoLinks, ""
	dir, err := r.resolve(upper)
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

// newSource checks f, which name led to. It takes ownership of f, and closes it on failure.
func (r Root) newSource(f *os.File, name string, deny []string) (_ *Source, err error) {
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	s, err := describe(f, name)
	if err != nil {
		return nil, err
	}
	if err := r.allow(s.UID, s.GID); err != nil {
		return nil, err
	}
	seen, err := newSurvey()
	if err != nil {
		return nil, err
	}
	if s.place, err = seen.locate(f); err != nil {
		return nil, refuse(spec.MountSource, name, "cannot be located: %v", err).Because(err)
	}
	s.Path = s.place.path
	if err := seen.checkDenied(s.place, name, deny); err != nil {
		return nil, err
	}
	return s, nil
}

// OpenIn is [Open] for a source in the volume whose root directory is root. Boxes have
// written the volume, so the path must not pass a symlink or a mount. No deny list
// applies, because nothing of the host is in a volume. The caller keeps root.
func OpenIn(root *os.File, m spec.Mount) (*Source, error) {
	if err := m.ValidateVolume(); err != nil {
		return nil, err
	}
	f, err := linux.Openat2(root, "./"+strings.TrimPrefix(m.Source, "/"), unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | unix.RESOLVE_NO_XDEV,
	})
	if errors.Is(err, unix.ELOOP) {
		return nil, refuse(spec.MountSource, m.Source, "passes a symlink in volume %s, name the real path", m.Volume).Because(err)
	}
	if err != nil {
		return nil, explainOpen(m.Source, err)
	}
	s, err := describe(f, m.Source)
	if err != nil {
		f.Close()
		return nil, err
	}
	s.Path = m.Volume + ":" + m.Source
	return s, nil
}

// describe returns f, which name led to, as a Source without a path, or refuses it if it is
// neither a directory nor a regular file.
func describe(f *os.File, name string) (*Source, error) {
	st, err := linux.Fstat(f)
	if err != nil {
		return nil, err
	}
	kind := "special file"
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR, unix.S_IFREG:
		return &Source{File: f, UID: st.Uid, GID: st.Gid, IsDir: st.Mode&unix.S_IFMT == unix.S_IFDIR}, nil
	case unix.S_IFSOCK:
		kind = "socket"
	case unix.S_IFIFO:
		kind = "FIFO"
	case unix.S_IFLNK:
		kind = "symlink"
	case unix.S_IFBLK, unix.S_IFCHR:
		kind = "device"
	}
	return nil, refuse(spec.MountSource, name, "is a %s, must be a directory or a regular file", kind)
}

// Close closes the descriptor. Trees made from s stay valid.
func (s *Source) Close() error { return s.File.Close() }

// explainOpen turns an error of opening a source into one that says what to do about it.
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
	if errno, ok := errors.AsType[unix.Errno](err); ok {
		return errno.Error()
	}
	return err.Error()
}
