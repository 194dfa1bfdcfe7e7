package mounts

import (
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/pathin"
)

// Root is a directory of the host in which all sources must lie, whatever a mount asks for.
// The zero Root is the whole host.
type Root struct {
	Path string // absolute and cleaned: sources in the root begin with it
	// Allow decides by the owner of a source or, for a missing source, by the owner of the
	// directory in which it would be created. Nil allows all owners.
	Allow func(uid, gid uint32) error

	dir *os.File // O_PATH; nil: the whole host
}

// maxLinks is how many symlinks OpenRoot follows, the same as the kernel
// (path_resolution(7)).
const maxLinks = 40

// OpenRoot opens the directory at name, an absolute cleaned path. The caller closes it.
//
// OpenRoot follows a symlink only if nobody but root can create or replace it: the link and
// its directory must belong to root, and others must not be able to write there. Otherwise
// the owner of a directory on the path could turn any directory of the host into the root.
//
// It also refuses a path with a directory in which stranger, or everybody, could rename
// entries: they could put another directory in the root's place. A nil stranger skips this
// check and leaves it to Allow.
func OpenRoot(name string, stranger *Owner) (Root, error) {
	if err := spec.CheckMountPath(fieldRoot, name); err != nil {
		return Root{}, err
	}
	if name != path.Clean(name) {
		return Root{}, refuse(fieldRoot, name, "must be written as %q", path.Clean(name))
	}
	top, err := linux.Openat2(nil, "/", unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
	if err != nil {
		return Root{}, err
	}
	defer top.Close()
	at := top
	fail := func(err error) (Root, error) {
		closeUnless(at, top)
		return Root{}, err
	}
	links := 0
	for rest := spec.PathComponents(name); len(rest) > 0; {
		above, err := linux.Fstat(at)
		if err != nil {
			return fail(err)
		}
		if stranger != nil && stranger.mayRename(above) {
			return fail(refuse(fieldRoot, name, "lies in a directory (of user %d, mode %04o) in which user %d or a group can put another in its place: use one in a directory of root's",
				above.Uid, above.Mode&0o7777, stranger.UID))
		}
		next, err := linux.Openat2(at, rest[0], unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW})
		if err != nil {
			return fail(refuse(fieldRoot, name, "cannot be opened: %s", rootCause(err)).Because(err))
		}
		rest = rest[1:]
		st, err := linux.Fstat(next)
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
			var target string
			target, err = linux.ReadlinkAt(next, "")
			next.Close()
			if err != nil {
				return fail(err)
			}
			if links++; links > maxLinks || st.Uid != 0 || above.Uid != 0 || above.Mode&0o022 != 0 {
				return fail(refuse(fieldRoot, name, "passes the symlink to %s, which others than root can change: name the real path", spec.QuotePath(target)))
			}
			if path.IsAbs(target) {
				closeUnless(at, top)
				at = top
			}
			rest = append(spec.PathComponents(target), rest...)
			continue
		}
		closeUnless(at, top)
		at = next
		switch {
		case err != nil:
			return fail(err)
		case st.Mode&unix.S_IFMT != unix.S_IFDIR:
			return fail(refuse(fieldRoot, name, "is not a directory"))
		}
	}
	dir, err := linux.Dup(at)
	if err != nil {
		return fail(err)
	}
	closeUnless(at, top)
	return Root{Path: name, dir: dir}, nil
}

// mayRename reports whether o can rename entries of others in a directory.
func (o *Owner) mayRename(dir unix.Stat_t) bool {
	if int(dir.Uid) == o.UID {
		return true
	}
	// o may be a member of any group, and an ACL that lets o write shows in these bits
	// (acl(5)).
	return dir.Mode&0o022 != 0 && dir.Mode&unix.S_ISVTX == 0
}

// Close closes the descriptor. Sources stay valid.
func (r Root) Close() error { return r.dir.Close() }

// Contains reports whether source lies in the directory dir, comparing both as text.
func Contains(dir, source string) bool {
	_, err := spec.Beneath(fieldRoot, dir, source)
	return err == nil
}

// open opens the absolute path p, beneath the root if there is one.
func (r Root) open(p string, flags uint64) (*os.File, error) {
	if r.dir == nil {
		return linux.Openat2(nil, p, unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_NO_MAGICLINKS})
	}
	rel, err := spec.Beneath(fieldRoot, r.Path, p)
	if err != nil {
		return nil, err
	}
	return linux.Openat2(r.dir, rel, unix.OpenHow{Flags: flags, Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_MAGICLINKS})
}

// bound opens the directory that the path to the source must not leave: m.Within or the
// root, whichever is deeper. It is nil if there is neither.
func (r Root) bound(m spec.Mount) (dir *os.File, name string, err error) {
	switch {
	case r.dir != nil && (m.Within == "" || pathin.In(r.Path, m.Within)):
		dir, err = linux.Dup(r.dir)
		return dir, r.Path, err
	case m.Within == "":
		return nil, "", nil
	}
	if err := spec.CheckMountPath(spec.MountWithin, m.Within); err != nil {
		return nil, "", err
	}
	dir, err = r.open(m.Within, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return nil, "", refuse(spec.MountWithin, m.Within, "must be a directory that can be opened: %s", rootCause(err)).Because(err)
	}
	return dir, m.Within, nil
}

// allow is r.Allow, where nil allows everything.
func (r Root) allow(uid, gid uint32) error {
	if r.Allow == nil {
		return nil
	}
	return r.Allow(uid, gid)
}
