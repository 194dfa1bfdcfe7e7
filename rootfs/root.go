package rootfs

import (
	"errors"
	"os"
	"path/filepath"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// Volume is a file system of limited size that a box can write to.
type Volume struct {
	Path string   // in the box
	Size int64    // bytes
	File *os.File // O_PATH descriptor for fstatfs; belongs to the Root
}

// Root is the root file system of one box. Its owner closes it when the box is
// gone. It is safe for concurrent use, except that no method may be called during
// or after Close.
type Root struct {
	dir      string
	idBase   int
	skeleton *os.File
	pts      *os.File
	volumes  []Volume
	visible  *os.File       // nil before Cover
	built    *builder       // for Cover
	closing  sync.WaitGroup // of what Build needs no longer

	mu     sync.Mutex
	hidden bool
	closed bool
}

// Path returns the path of the box's root in the launcher's mount namespace. It is valid until
// Hide.
func (r *Root) Path() string { return filepath.Join(r.dir, rootName) }

// Dev returns the path of the directory that the box's first process binds to /dev, with
// everything mounted on it. Like Path, it is valid until Hide.
func (r *Root) Dev() string { return filepath.Join(r.dir, devName) }

// Skeleton returns a descriptor of the box's root directory on a mount of its own: it does not
// show what is mounted on it for the box, and can be written to even if the box's root is
// read-only. It belongs to r.
func (r *Root) Skeleton() *os.File { return r.skeleton }

// Volumes returns what the box can write to, apart from mounts by others.
func (r *Root) Volumes() []Volume { return r.volumes }

// OpenPTY opens a terminal of rows × cols characters in the box's own devpts, for the user
// uid:gid of the box. The caller owns both files.
func (r *Root) OpenPTY(uid, gid int, rows, cols uint16) (master, slave *os.File, err error) {
	return openPTY(r.pts, r.idBase+uid, r.idBase+gid, rows, cols)
}

// Hide removes the launcher's view of the root, and its directory, when the box has its own
// copy of the mounts. Skeleton, Volumes and OpenPTY still work.
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
	// This also unmounts all mounts beneath it.
	return errors.Join(linux.Unmount(r.dir, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW), os.Remove(r.dir))
}

// Close hides the root and closes its descriptors. The file systems end with the last
// process that uses them. It is idempotent.
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
	r.closing.Wait()
	r.built.top.Close() // a nil file and a closed one are fine
	r.skeleton.Close()
	r.pts.Close()
	r.visible.Close()
	for _, v := range r.volumes {
		v.File.Close()
	}
	return nil
}
