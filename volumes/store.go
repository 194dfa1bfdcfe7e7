package volumes

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/internal/keyed"
)

// How the limits of a volume are enforced.
const (
	ByProjectQuota = "project-quota"
	ByImage        = "image"
)

// State is one volume.
type State struct {
	Name string
	// Its limits. An image may have more inodes than were asked for: their tables are a
	// multiple of 16 for each 128 MiB, and grow with the bytes.
	Bytes, Inodes         int64
	UsedBytes, UsedInodes int64 // its root directory counts
	By                    string
}

// Store is a data directory and its volumes. Its methods can be called at the same
// time; those for one volume wait for one another. One process has the data
// directory at a time.
//
// What is in the data directory, for each volume:
//
//	<name>.volume   its record, see [volumeRecord]; what can be lost of it is found again
//	<name>.dir      its root, where the file system has project quota
//	<name>.img      else its image
//	<id>.tree       the record of a directory elsewhere that LimitTree has given project id
//	.new-…, .old/   what is being made, and what is being deleted: swept by Open
type Store struct {
	dir      *os.File // the data directory
	marker   *os.File // the file that is locked
	private  *os.File // where images are mounted
	uid, gid int
	quota    bool  // dir has project quota
	noQuota  error // why not

	locks keyed.Locks
	ids   ids

	closing chan struct{}
	sweeper sync.WaitGroup
	once    sync.Once
}

// Open takes over dataDir, and makes it if it is missing: a directory of the calling
// user, closed to all others, in one that only the administrator can write to. It
// completes or undoes what a killed process left half done there.
//
// Images are mounted below the directory private, made as well, in the mount namespace
// of the calling process, which must be one of its own: nothing mounted there may
// propagate. What is mounted there already is taken away. uid and gid own the roots of
// the volumes.
func Open(dataDir, private string, uid, gid uint32) (_ *Store, err error) {
	var undo cleanup.Stack
	defer undo.Undo(&err)
	s := &Store{uid: int(uid), gid: int(gid), closing: make(chan struct{})}
	if s.dir, err = openOwn("data directory", dataDir); err != nil {
		return nil, err
	}
	undo.Push(s.dir.Close)
	if s.marker, err = takeOver(s.dir); err != nil {
		return nil, err
	}
	undo.Push(s.marker.Close)
	if s.private, err = openOwn("mount directory", private); err != nil {
		return nil, err
	}
	undo.Push(s.private.Close)
	if err := checkPropagation(s.private); err != nil {
		return nil, err
	}
	s.noQuota = quotaOn(s.dir)
	s.quota = s.noQuota == nil
	if err := s.heal(); err != nil {
		return nil, fmt.Errorf("putting data directory %q in order: %w", dataDir, err)
	}
	undo.Release()
	return s, nil
}

// Close gives the data directory back and takes the Store's mounts away. Volumes
// stay, and those that are mounted elsewhere stay usable there. No other method may
// be under way.
func (s *Store) Close() error {
	var err error
	s.once.Do(func() {
		close(s.closing)
		s.sweeper.Wait()
		err = errors.Join(s.unmountAll(), s.private.Close(), s.dir.Close(), s.marker.Close())
	})
	return err
}

// Make makes the volume name, or gives an existing one new limits: hard ones, of
// bytes and of files. Inodes of 0 means one for 16 KiB, at least 1024, and for an
// image at least as many as it has.
//
// A volume that is an image grows only: else ErrShrink. ErrBusy if the image is in use
// and this process, without CAP_SYS_RESOURCE, can grow it only when it is not. With
// project quota a limit may be less than what is in use: then nothing can be added.
// ErrNoLoop, joined to ErrNoQuota, where the host can do neither.
//
// On a quiet machine an image takes 6 ms, whatever its size: 4 are mke2fs, half of that its
// start and its fsync calls; the rest is binding, mounting and sizing the ballast.
// To mount it again takes 1.3 ms. A directory with a project takes 0.2 ms.
func (s *Store) Make(name string, bytes, inodes int64) error {
	if err := checkName(name); err != nil {
		return err
	}
	asked := inodes
	bytes, inodes, err := checkLimits(bytes, inodes)
	if err != nil {
		return err
	}
	defer s.locks.Lock(name)()
	r, err := s.load(name)
	switch {
	case errors.Is(err, ErrUnknown) && s.quota:
		err = s.makeProject(name, bytes, inodes)
	case errors.Is(err, ErrUnknown):
		err = s.makeImage(name, bytes, inodes)
	case err != nil:
	case r.By == ByImage:
		if asked == 0 {
			inodes = max(inodes, r.Inodes)
		}
		err = s.growImage(name, r, bytes, inodes)
	default:
		err = s.changeProject(name, r, bytes, inodes)
	}
	if err != nil {
		return fmt.Errorf("volume %q: %w", name, err)
	}
	return nil
}

// Root returns an O_PATH descriptor of the root of volume name, mounting its image
// if need be. The root is a directory that the Store's user and group own, mode
// 0700 at first. The caller closes it. Unknown: ErrUnknown.
func (s *Store) Root(name string) (*os.File, error) {
	if err := checkName(name); err != nil {
		return nil, err
	}
	defer s.locks.Lock(name)()
	r, err := s.load(name)
	if err != nil {
		return nil, fmt.Errorf("volume %q: %w", name, err)
	}
	var root *os.File
	if r.By == ByImage {
		root, err = s.imageRoot(name, r)
	} else {
		root, err = s.projectRoot(name, r)
	}
	if err != nil {
		return nil, fmt.Errorf("volume %q: %w", name, err)
	}
	return root, nil
}

// Release takes away the Store's own mount of the image of volume name: what was cloned
// from it, and descriptors of it, stay usable, though nothing can be cloned from those
// any more. Root mounts the same image again. It is not an error when there is nothing
// to do.
func (s *Store) Release(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	defer s.locks.Lock(name)()
	if err := s.unmount(name, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("volume %q: %w", name, err)
	}
	return nil
}

// Remove deletes volume name with all that is in it, under the hands of whoever uses
// it: what they still have open, or mounted, stays limited, and its space is free when
// they let go. Unknown: no error.
func (s *Store) Remove(name string) error {
	if err := checkName(name); err != nil {
		return err
	}
	defer s.locks.Lock(name)()
	r, err := s.load(name)
	if errors.Is(err, ErrUnknown) {
		return nil
	}
	// Any other error is about what is in its place, whatever that is.
	if err := s.remove(name, r); err != nil {
		return fmt.Errorf("volume %q: %w", name, err)
	}
	return nil
}

// remove deletes what there is of volume name, its record last.
func (s *Store) remove(name string, r volumeRecord) error {
	image, err := s.exists(name + imageSuffix)
	if err != nil {
		return err
	}
	if image {
		if err := s.removeImage(name); err != nil {
			return err
		}
	}
	dir, err := s.exists(name + dirSuffix)
	if err != nil {
		return err
	}
	if !dir {
		return s.forget(name, r)
	}
	trash, moved, err := s.toTrash(name + dirSuffix)
	if err != nil {
		return err
	}
	defer trash.Close()
	if err := s.forget(name, r); err != nil {
		return err
	}
	return s.discard(trash, moved)
}
