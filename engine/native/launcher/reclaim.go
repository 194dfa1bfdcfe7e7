package launcher

import (
	"errors"
	"io"
	"io/fs"
	"os"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/mounts"
	"golang.org/x/sys/unix"
)

// maxReclaimDepth bounds how many descriptors are open at a time. A client with a deeper tree
// moves the deepest levels up and asks again.
const maxReclaimDepth = 160

// reclaim gives everything below src that belongs to the shared ids to the owner of src.
// Boxes wrote it, and the client can still change it. So each entry is opened without
// following symlinks, checked, and changed through the same descriptor: nothing that belongs
// to another user is changed, whatever replaces the entry meanwhile.
func reclaim(src *mounts.Source) error {
	dir, err := openEntry(src.File, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer dir.Close()
	return reclaimIn(dir, int(src.UID), int(src.GID), 0)
}

func reclaimIn(dir *os.File, uid, gid, depth int) error {
	for {
		names, err := dir.Readdirnames(256)
		for _, name := range names {
			if err := reclaimEntry(dir, name, uid, gid, depth); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func reclaimEntry(dir *os.File, name string, uid, gid, depth int) error {
	entry, err := openEntry(dir, name, unix.O_PATH)
	if err != nil {
		return err
	}
	defer entry.Close()
	st, err := linux.Fstat(entry)
	if err != nil {
		return err
	}
	if isShared(st.Uid) || isShared(st.Gid) {
		to := [2]int{-1, -1} // -1: unchanged
		if isShared(st.Uid) {
			to[0] = uid
		}
		if isShared(st.Gid) {
			to[1] = gid
		}
		if err := linux.Fchownat(entry, "", to[0], to[1]); err != nil {
			return err
		}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || depth >= maxReclaimDepth {
		return nil
	}
	sub, err := openEntry(entry, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer sub.Close()
	return reclaimIn(sub, uid, gid, depth+1)
}

// openEntry opens name in dir. It does not enter another file system and follows no symlink;
// a symlink itself can be opened with O_PATH.
func openEntry(dir *os.File, name string, flags uint64) (*os.File, error) {
	return linux.Openat2(dir, name, unix.OpenHow{
		Flags:   flags | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
}
