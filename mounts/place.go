package mounts

import (
	"errors"
	"fmt"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/pathin"
)

// survey is what one check has learned of this mount namespace. It is not kept: any of it may change.
type survey struct {
	mounts map[uint64]linux.MountInfo // by ID
	// above has the directories above a directory, the nearest first, up to the root. Most places that a check looks at
	// have most of them in common.
	above map[mountedDir][]fileID
}

// mountedDir identifies a directory in one mount.
type mountedDir struct {
	id    fileID
	mount uint64
}

func dirOf(st unix.Statx_t) mountedDir { return mountedDir{idOf(st), st.Mnt_id} }

func newSurvey() (*survey, error) {
	all, err := linux.ReadMountInfo()
	if err != nil {
		return nil, fmt.Errorf("listing mounts: %w", err)
	}
	s := &survey{mounts: make(map[uint64]linux.MountInfo, len(all)), above: map[mountedDir][]fileID{}}
	for _, m := range all {
		s.mounts[m.ID] = m
	}
	return s, nil
}

// place is the location of an open file, in three forms: two places can be equal in one
// form and differ in another.
type place struct {
	path  string   // from the root of this process
	chain []fileID // the file itself, its directory, … up to the root
	fs    linux.MountInfo
	inFS  string // from the root of the file system, independent of mounts
	st    unix.Statx_t
}

// fileID identifies a file. It is the same through every mount of the file.
type fileID struct {
	major, minor uint32
	ino          uint64
}

func idOf(st unix.Statx_t) fileID { return fileID{st.Dev_major, st.Dev_minor, st.Ino} }

func (p place) id() fileID { return p.chain[0] }

func isDir(st unix.Statx_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// maxDepth exceeds the number of directories that any path can have.
const maxDepth = 4096

// locate returns the place of the O_PATH descriptor f.
func (s *survey) locate(f *os.File) (place, error) {
	st, err := stat(f)
	if err != nil {
		return place{}, err
	}
	entry, ok := s.mounts[st.Mnt_id]
	if !ok {
		return place{}, errors.New("it is on no mount of this mount namespace")
	}
	name, err := os.Readlink(linux.FdPath(f))
	if err != nil {
		return place{}, err
	}
	rest, below := pathin.Rel(name, entry.Point)
	// A removed directory has no links, and its name ends in " (deleted)".
	if !below || st.Nlink == 0 {
		return place{}, errMoved
	}
	chain, err := s.ancestors(f, st, name)
	return place{path: name, chain: chain, fs: entry, inFS: path.Join(entry.Root, rest), st: st}, err
}

var errMoved = errors.New("it was moved or removed meanwhile")

// stat gets everything that locate needs in one system call.
func stat(f *os.File) (unix.Statx_t, error) {
	const mask = unix.STATX_BASIC_STATS | unix.STATX_MNT_ID
	st, err := linux.Statx(f, mask)
	if err == nil && st.Mask&unix.STATX_MNT_ID == 0 {
		err = errNoMountID
	}
	return st, err
}

// ancestors walks from f to the root of this process, by descriptor. The owner of f cannot
// forge the directories above it: that would take a rename in directories of others.
func (s *survey) ancestors(f *os.File, st unix.Statx_t, name string) ([]fileID, error) {
	chain := []fileID{idOf(st)}
	if isDir(st) {
		return s.climb(f, st, chain)
	}
	// A file has no "..", so its directory is found by name, and must contain the file.
	dir, err := openParent(st, name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	above, err := stat(dir)
	if err != nil {
		return nil, err
	}
	return s.climb(dir, above, append(chain, idOf(above)))
}

// climb appends the directories above start, whose status is st, to chain.
func (s *survey) climb(start *os.File, st unix.Statx_t, chain []fileID) ([]fileID, error) {
	dir, passed, first := start, []mountedDir{dirOf(st)}, len(chain)
	defer func() { closeUnless(dir, start) }()
	for len(chain) < maxDepth {
		if rest, known := s.above[dirOf(st)]; known {
			return s.noteAbove(passed, append(chain, rest...), first), nil
		}
		parent, above, err := openDotDot(dir)
		if err != nil {
			return nil, err
		}
		closeUnless(dir, start)
		dir = parent
		// The root is its own parent. Compare the mounts too: a directory can be mounted
		// on one of its own children.
		if idOf(above) == idOf(st) && above.Mnt_id == st.Mnt_id {
			return s.noteAbove(passed, chain, first), nil
		}
		chain = append(chain, idOf(above))
		passed = append(passed, dirOf(above))
		st = above
	}
	return nil, errors.New("it is nested too deeply")
}

// noteAbove notes what is above each of the directories dirs, which are in chain from first-1 on, and returns chain.
func (s *survey) noteAbove(dirs []mountedDir, chain []fileID, first int) []fileID {
	for i, dir := range dirs {
		s.above[dir] = slices.Clip(chain[first+i:])
	}
	return chain
}

func openDotDot(dir *os.File) (*os.File, unix.Statx_t, error) {
	parent, err := linux.Openat2(dir, "..", unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
	if err != nil {
		return nil, unix.Statx_t{}, err
	}
	st, err := stat(parent)
	if err != nil {
		parent.Close()
		return nil, st, err
	}
	return parent, st, nil
}

// openParent opens the directory that contains the file with status st under the given
// name.
func openParent(st unix.Statx_t, name string) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_NO_SYMLINKS,
	}
	dir, err := linux.Openat2(nil, path.Dir(name), how)
	if err != nil {
		return nil, errors.Join(errMoved, err)
	}
	child, err := linux.Openat2(dir, path.Base(name), how)
	if err != nil {
		dir.Close()
		return nil, errors.Join(errMoved, err)
	}
	defer child.Close()
	got, err := stat(child)
	if err == nil && (idOf(got) != idOf(st) || got.Mnt_id != st.Mnt_id) {
		err = errMoved
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}
