package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// Root is the root file system of one box. Its owner closes it once the box is
// gone. It is safe for concurrent use, except that nothing may be called during
// or after Close.
type Root struct {
	dir      string
	idBase   int
	skeleton *os.File
	pts      *os.File
	volumes  []Volume
	visible  *os.File // nil before Cover
	built    *builder // for Cover

	mu     sync.Mutex
	hidden bool
	closed bool
}

// Path is the box's root in the launcher's mount namespace, until Hide.
func (r *Root) Path() string { return filepath.Join(r.dir, rootName) }

// Dev is what the box's first process binds on /dev, with all that is mounted on it; as Path.
func (r *Root) Dev() string { return filepath.Join(r.dir, devName) }

// Skeleton is a descriptor of the box's root directory on the tmpfs itself: what
// is mounted on it for the box is not visible through it, and it can be written
// to even if the box's root is read-only. It belongs to r.
func (r *Root) Skeleton() *os.File { return r.skeleton }

// OpenPTY opens a terminal of the box's own devpts, of rows × cols characters,
// for the user uid:gid, ids in the box. Both files are owned by the caller.
func (r *Root) OpenPTY(uid, gid int, rows, cols uint16) (master, slave *os.File, err error) {
	return openPTY(r.pts, r.idBase+uid, r.idBase+gid, rows, cols)
}

// Hide removes the launcher's view of the root, once the box has its own copy
// of the mounts, and the directory. What Skeleton, Volumes and OpenPTY work with
// stays.
func (r *Root) Hide() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hideLocked()
}

func (r *Root) hideLocked() error {
	if r.hidden {
		return nil
	}
	r.hidden = true
	// One call for the whole stack of mounts: they hang beneath this one.
	return errors.Join(linux.Unmount(r.dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW), os.Remove(r.dir))
}

// Close hides the root and gives up what is held of it. The file systems end
// with the last process that uses them. It is idempotent.
func (r *Root) Close() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil
	}
	r.closed = true
	return errors.Join(r.hideLocked(), r.closeFiles())
}

func (r *Root) closeFiles() error {
	r.built.top.Close() // a nil file and a closed one are fine
	r.skeleton.Close()
	r.pts.Close()
	r.visible.Close()
	for _, v := range r.volumes {
		v.File.Close()
	}
	return nil
}
