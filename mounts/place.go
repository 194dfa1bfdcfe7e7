package mounts

import (
	"errors"
	"os"
	"path"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// place is where an open file is, told in three ways, because each of them can
// be the same while another differs.
type place struct {
	path  string   // from the root of this process
	chain []fileID // the file itself, its directory, … up to the root
	fs    linux.MountInfo
	inFS  string // from the root of the file system, whatever is mounted where
	st    unix.Statx_t
}

// fileID is the identity of a file, the same through every mount of it.
type fileID struct {
	major, minor uint32
	ino          uint64
}

func idOf(st unix.Statx_t) fileID { return fileID{st.Dev_major, st.Dev_minor, st.Ino} }

func (p place) id() fileID { return p.chain[0] }

// isRoot says that the place is the root directory of this process.
func (p place) isRoot() bool { return len(p.chain) == 1 }

func (p place) isDir() bool { return isDir(p.st) }

func isDir(st unix.Statx_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// sameFS says that both lie in one file system, maybe through different mounts.
// st_dev would not do: each btrfs subvolume has its own.
func (p place) sameFS(q place) bool { return p.fs.Device == q.fs.Device }

// maxDepth is more directories than any path can name.
const maxDepth = 4096

// locate finds out where the O_PATH descriptor f is.
func locate(f *os.File, table mountTable) (place, error) {
	st, err := stat(f)
	if err != nil {
		return place{}, err
	}
	entry, ok := table[st.Mnt_id]
	if !ok {
		return place{}, errors.New("it is on no mount of this mount namespace")
	}
	name, err := os.Readlink(linux.FdPath(f))
	if err != nil {
		return place{}, err
	}
	rest, below := cutDir(name, entry.Point)
	// A removed directory has no links, and its name reads "… (deleted)".
	if !below || st.Nlink == 0 {
		return place{}, errMoved
	}
	chain, err := ancestors(f, st, name)
	return place{path: name, chain: chain, fs: entry, inFS: path.Join(entry.Root, rest), st: st}, err
}

var errMoved = errors.New("it was moved or removed meanwhile")

// stat asks for what locate needs in one system call.
func stat(f *os.File) (unix.Statx_t, error) {
	const mask = unix.STATX_BASIC_STATS | unix.STATX_MNT_ID
	st, err := linux.Statx(f, mask)
	if err == nil && st.Mask&unix.STATX_MNT_ID == 0 {
		err = errors.New("the kernel does not tell mount ids, which needs Linux 5.8")
	}
	return st, err
}

// ancestors walks from f to the root of this process, by descriptor. What lies
// above cannot be forged by whoever owns f: it takes a rename in directories of
// others.
func ancestors(f *os.File, st unix.Statx_t, name string) ([]fileID, error) {
	chain := []fileID{idOf(st)}
	if isDir(st) {
		return climb(f, st, chain)
	}
	// A file has no "..", so its directory is found by name and must have it.
	dir, err := openParent(st, name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	above, err := stat(dir)
	if err != nil {
		return nil, err
	}
	return climb(dir, above, append(chain, idOf(above)))
}

// climb appends the directories above start, whose status is st, to chain.
func climb(start *os.File, st unix.Statx_t, chain []fileID) ([]fileID, error) {
	dir := start
	defer func() { closeUnless(dir, start) }()
	for len(chain) < maxDepth {
		parent, above, err := openDotDot(dir)
		if err != nil {
			return nil, err
		}
		closeUnless(dir, start)
		dir = parent
		// The root is its own parent. The mount counts too: a directory can be
		// mounted on one of its own children.
		if idOf(above) == idOf(st) && above.Mnt_id == st.Mnt_id {
			return chain, nil
		}
		chain = append(chain, idOf(above))
		st = above
	}
	return nil, errors.New("it lies too deep")
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

// openParent opens the directory in which the file with status st has the given
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
