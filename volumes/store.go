package volumes

import (
	"errors"
	"os"
)

// Conditions that callers tell apart with errors.Is.
var (
	// ErrNoQuota: the file system has no project quota, or it is not switched on.
	ErrNoQuota = errors.New("no project quota")
	// ErrNoLoop: this host cannot use a file as a block device, or cannot make a
	// file system in one.
	ErrNoLoop = errors.New("no loop devices")
	// ErrShrink: an image cannot become smaller.
	ErrShrink = errors.New("an image cannot become smaller")
	// ErrBusy: somebody else still uses the volume.
	ErrBusy = errors.New("volume is in use")
	// ErrUnknown: there is no volume of that name.
	ErrUnknown = errors.New("no such volume")
)

// How the limits of a volume are enforced.
const (
	ByProjectQuota = "project-quota"
	ByImage        = "image"
)

// State is one volume.
type State struct {
	Name                  string
	Bytes, Inodes         int64 // its limits
	UsedBytes, UsedInodes int64 // its root directory counts
	By                    string
}

// Store is a data directory and its volumes. Its methods can be called at the same
// time; those for one volume wait for one another. One process has the data
// directory at a time.
type Store struct{}

// Open takes over dataDir, which must belong to the calling user and be closed to
// all others, and completes or undoes what a killed process left half done there.
// Images are mounted below the directory private, in the mount namespace of the
// calling process, which must be one of its own; nothing mounted there may
// propagate. uid and gid own the roots of the volumes.
func Open(dataDir, private string, uid, gid uint32) (*Store, error) {
	return nil, errors.ErrUnsupported
}

// Make makes the volume name, or gives an existing one new limits: hard ones, of
// bytes and of files. Inodes of 0 means one for 16 KiB, at least 1024. A volume
// that is an image grows only: else ErrShrink. ErrNoLoop, joined to ErrNoQuota, where the
// host can do neither.
func (s *Store) Make(name string, bytes, inodes int64) error { return errors.ErrUnsupported }

// Root returns an O_PATH descriptor of the root of volume name, mounting its image
// if need be. The root is a directory that the Store's user and group own, mode
// 0700 at first. The caller closes it. Unknown: ErrUnknown.
func (s *Store) Root(name string) (*os.File, error) { return nil, errors.ErrUnsupported }

// Release takes away the Store's own mount of the image of volume name, if nobody
// holds a descriptor of it: what was cloned from it stays usable, and Root mounts
// the same image again. It is not an error when there is nothing to do.
func (s *Store) Release(name string) error { return errors.ErrUnsupported }

// Remove deletes volume name with all that is in it. Unknown: no error. ErrBusy if
// its image is mounted elsewhere, or a descriptor of its root is open.
func (s *Store) Remove(name string) error { return errors.ErrUnsupported }

// List returns all volumes, sorted by name.
func (s *Store) List() ([]State, error) { return nil, errors.ErrUnsupported }

// Close gives the data directory back and takes the Store's mounts away. Volumes
// stay, and those that are mounted elsewhere stay usable there.
func (s *Store) Close() error { return errors.ErrUnsupported }

// LimitTree bounds the directory dir of the host, with all that is in it already,
// by project quota. 0 for both takes the limit away. What is in it already may be
// more than the limit: then nothing can be added. ErrNoQuota if its file system has none.
func (s *Store) LimitTree(dir *os.File, bytes, inodes int64) error { return errors.ErrUnsupported }

// LimitOf returns the project limit that dir is under, with By "project-quota" and
// no name; ok is false if it is under none. 0 means no limit of that kind.
func LimitOf(dir *os.File) (st State, ok bool, err error) { return State{}, false, nil }
