// Package layers keeps the directories of image layers: those that boxes are writing, and those
// that are published and never change. It is a kernel leaf for the launcher, which is root. It
// knows no image and unpacks nothing.
//
// Boxes have written the content of every layer. So whatever lies below a layer is reached by
// descriptors, without symlinks and mounts.
package layers

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/keyed"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/trash"
)

// Conditions that callers distinguish with errors.Is.
var (
	ErrUnknown = errors.New("no such layer")
	ErrExists  = errors.New("there is an unpublished layer of this name, which is not empty")
	ErrInUse   = errors.New("layer is in use")
	// ErrRefused: a box has written what a layer cannot be. The text says what.
	ErrRefused = errors.New("not a layer")
)

// Names in a layer.
const (
	Files  = "fs"     // the directory with the files of the layer
	Opaque = "opaque" // lists the directories below Files that hide lower layers; may be missing
)

// maxOpaque is the size of Opaque in bytes: a million directories with short names.
const maxOpaque = 16 << 20

// Store is a directory of layers:
//
//	<id>/                     a published layer; locked by each process of which a box uses it
//	new/<random>/<name>/      an unpublished layer of the process that has locked new/<random>
//	trash/                    what is being deleted
//
// Several processes may have it open. A Store is safe for concurrent use.
type Store struct {
	dir, trash *os.File
	mine       *os.File // the directory in new, locked
	parent     *os.File // new
	session    string   // the name of mine
	owner      int

	names keyed.Locks // of unpublished layers

	closing  chan struct{} // closed when Close begins
	late     chan struct{} // closed some time later
	sweeper  sync.WaitGroup
	sweeping sync.Mutex // during a deletion in the background

	mu   sync.Mutex
	used map[string]*use
}

// use is a published layer that this process uses.
type use struct {
	dir   *os.File // locked
	count int
}

// Open opens the store in the directory path, and creates it if it is missing. The directory must
// belong to the calling user and be closed to all others. Open begins to delete what processes
// that have ended left unfinished. On disk, owner is the user and group 0 of the boxes that write layers.
func Open(path string, owner uint32) (_ *Store, err error) {
	s := &Store{owner: int(owner), closing: make(chan struct{}), late: make(chan struct{}), used: map[string]*use{}}
	defer func() {
		if err != nil {
			linux.CloseAll([]*os.File{s.dir, s.trash, s.parent, s.mine})
		}
	}()
	if err := os.Mkdir(path, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return nil, err
	}
	s.dir, err = linux.Openat2(nil, path, unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, err
	}
	if st, err := linux.Fstat(s.dir); err != nil || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0 {
		return nil, errors.Join(fmt.Errorf("directory %q: belongs to user %d with mode %#o, must belong to user %d with mode 0700: run chown and chmod",
			path, st.Uid, st.Mode&0o7777, os.Geteuid()), err)
	}
	if s.trash, err = openOrMake(s.dir, "trash"); err != nil {
		return nil, err
	}
	if s.parent, err = openOrMake(s.dir, "new"); err != nil {
		return nil, err
	}
	if err := s.beginSession(); err != nil {
		return nil, err
	}
	if err := s.endSessions(); err != nil {
		return nil, err
	}
	s.sweeper.Go(func() {
		trash.Empty(s.trash, s.closing, func(name string) error { return trash.Discard(s.trash, name, s.closing) })
	})
	return s, nil
}

// Close ends the use of the store. Unpublished layers are deleted when it is opened the next
// time. No other method may be running.
func (s *Store) Close() error {
	close(s.closing)
	late := time.AfterFunc(deleteTime, func() { close(s.late) })
	s.sweeper.Wait()
	late.Stop()
	for _, u := range s.used {
		u.dir.Close()
	}
	err := linux.RmdirAt(s.parent, s.session)
	if errors.Is(err, unix.ENOTEMPTY) {
		err = nil
	}
	return errors.Join(err, s.mine.Close(), s.parent.Close(), s.trash.Close(), s.dir.Close())
}

func openOrMake(dir *os.File, name string) (*os.File, error) {
	if err := linux.MkdirAt(dir, name, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	return linux.OpenDirAt(dir, name, unix.O_RDONLY)
}

// openLocked opens the directory name and locks it, without waiting. The error is EWOULDBLOCK if
// another process has a lock that excludes this one, and ENOENT if the directory was moved away meanwhile.
func openLocked(dir *os.File, name string, how int) (*os.File, error) {
	f, err := linux.OpenDirAt(dir, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	var now unix.Stat_t
	locked, err := linux.Fstat(f)
	if err == nil {
		err = linux.Flock(f, how|unix.LOCK_NB)
	}
	if err == nil {
		now, err = linux.StatAt(dir, name)
	}
	if err == nil && locked.Ino != now.Ino {
		err = &os.PathError{Op: "flock", Path: f.Name(), Err: unix.ENOENT}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// beginSession makes and locks the directory of this process's unpublished layers. Another
// process may find it before it is locked, and delete it.
func (s *Store) beginSession() (err error) {
	for range 100 {
		s.session = strings.TrimPrefix(trash.NewName(), trash.Prefix)
		if err = linux.MkdirAt(s.parent, s.session, 0o700); err != nil {
			return err
		}
		s.mine, err = openLocked(s.parent, s.session, unix.LOCK_EX)
		if !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.EWOULDBLOCK) {
			return err
		}
	}
	return err
}

// endSessions moves the unpublished layers of processes that have ended to the trash.
func (s *Store) endSessions() error {
	names, err := linux.ReadNames(s.parent)
	if err != nil {
		return err
	}
	for _, name := range names {
		if name == s.session {
			continue
		}
		f, err := openLocked(s.parent, name, unix.LOCK_EX)
		if errors.Is(err, unix.EWOULDBLOCK) || errors.Is(err, unix.ENOENT) {
			continue
		}
		if err == nil || errors.Is(err, unix.ENOTDIR) {
			_, err = trash.Move(s.parent, name, s.trash)
			f.Close() // a nil file is fine
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// Make creates the unpublished layer name. One that exists must be empty, otherwise the error is
// ErrExists. Names are one path component, and do not begin with ".".
func (s *Store) Make(name string) error {
	defer s.names.Lock(name)()
	dir, err := s.make(name)
	if err != nil {
		return err
	}
	return dir.Close()
}

// make creates an empty directory of the boxes' user 0 in s.mine.
func (s *Store) make(name string) (*os.File, error) {
	dir, err := openOrMake(s.mine, name)
	if err != nil {
		return nil, err
	}
	if _, err = dir.Readdirnames(1); err == nil {
		err = ErrExists
	} else if err == io.EOF {
		err = dir.Chown(s.owner, s.owner)
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

// Unpublished opens the unpublished layer name. The caller closes it. ErrUnknown: there is none.
func (s *Store) Unpublished(name string) (*os.File, error) {
	dir, err := linux.OpenDirAt(s.mine, name, unix.O_RDONLY)
	if errors.Is(err, unix.ENOENT) {
		err = ErrUnknown
	}
	return dir, err
}

// Unfinished lists the unpublished layers.
func (s *Store) Unfinished() ([]string, error) {
	names, err := linux.ReadNames(s.mine)
	// Publish is working on the others, and deletes them if it fails.
	return slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, trash.Prefix) }), err
}

// deleteTime is how long Abandon and Close wait until all files of a layer are deleted: they can be millions, and the
// launcher's client waits 30 s for a reply, and 15 s for the launcher's end.
const deleteTime = 5 * time.Second

// Abandon deletes the unpublished layer name, if there is one. What it has not deleted after some seconds is deleted
// in the background and, after Close, by the next Open.
func (s *Store) Abandon(name string) error {
	defer s.names.Lock(name)()
	return s.throwAway(name)
}

func (s *Store) throwAway(name string) error {
	moved, err := trash.Move(s.mine, name, s.trash)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if err != nil {
		return err
	}
	deleted := make(chan error, 1)
	s.sweeper.Go(func() { deleted <- trash.Discard(s.trash, moved, s.closing) })
	select {
	case err = <-deleted:
	case <-time.After(deleteTime):
	}
	return err
}

// Publish makes the unpublished layer name the layer id. No mount of it may exist that can be
// written. If there is a layer id, Publish deletes the unpublished one, if there is one.
func (s *Store) Publish(name, id string) error {
	defer s.names.Lock(name)()
	if _, err := linux.StatAt(s.dir, id); !errors.Is(err, unix.ENOENT) {
		if err != nil {
			return err
		}
		return s.throwAway(name)
	}
	written, err := s.Unpublished(name)
	if err != nil {
		return err
	}
	defer written.Close()
	if err := markOpaque(written); err != nil {
		return err
	}
	// Whatever else a box has written next to the two is left behind.
	whole := trash.NewName()
	dir, err := s.make(whole)
	if err != nil {
		return err
	}
	defer dir.Close()
	err = linux.RenameNew(written, Files, dir, Files)
	if moved := linux.RenameNew(written, Opaque, dir, Opaque); !errors.Is(moved, unix.ENOENT) {
		err = errors.Join(err, moved)
	}
	if err == nil {
		err = linux.Syncfs(s.dir)
	}
	if err == nil {
		err = linux.RenameNew(s.mine, whole, s.dir, id)
	}
	switch {
	case errors.Is(err, unix.EEXIST): // another process was faster
		return errors.Join(s.throwAway(whole), s.throwAway(name))
	case err != nil:
		return errors.Join(err, s.throwAway(whole))
	}
	return errors.Join(s.dir.Sync(), s.throwAway(name))
}

// markOpaque checks the layer that a box has written, and sets the attribute with which overlayfs
// recognizes the directories that the file Opaque lists (Documentation/filesystems/overlayfs.rst).
func markOpaque(layer *os.File) error {
	files, err := linux.OpenDirAt(layer, Files, unix.O_RDONLY)
	if err != nil {
		return notDirectory(Files, err)
	}
	defer files.Close()
	list, err := readOpaque(layer)
	if err != nil {
		return err
	}
	for len(list) > 0 {
		path, rest, ended := bytes.Cut(list, []byte{0})
		if !ended {
			return fmt.Errorf("%w: %q must end with a NUL byte", ErrRefused, Opaque)
		}
		list = rest
		dir, err := linux.OpenDirAt(files, string(path), unix.O_RDONLY)
		if err != nil {
			return notDirectory(string(path), err)
		}
		err = linux.Fsetxattr(dir, "trusted.overlay.opaque", []byte("y"))
		dir.Close()
		if err != nil {
			return err
		}
	}
	return nil
}

// notDirectory refuses what a box has written, unless err, of opening it, is the host's fault.
func notDirectory(name string, err error) error {
	errno, _ := errors.AsType[unix.Errno](err)
	switch errno {
	case unix.ENOENT, unix.ENOTDIR, unix.ELOOP, unix.EXDEV, unix.ENAMETOOLONG, unix.EINVAL:
		return fmt.Errorf("%w: %.100q must be a directory of the layer: %w", ErrRefused, name, errno)
	}
	return err
}

// readOpaque returns the content of the file Opaque. It opens nothing but a regular file.
func readOpaque(layer *os.File) ([]byte, error) {
	st, err := linux.StatAt(layer, Opaque)
	switch {
	case errors.Is(err, unix.ENOENT):
		return nil, nil
	case err != nil:
		return nil, err
	case st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink != 1 || st.Size > maxOpaque:
		return nil, fmt.Errorf("%w: %q must be a regular file with one name and at most %d bytes", ErrRefused, Opaque, maxOpaque)
	}
	f, err := linux.Openat2(layer, Opaque, unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(io.LimitReader(f, maxOpaque))
}

// Use keeps the published layer id until release is called, and returns it. It is lent until
// then. ErrUnknown: there is no such layer.
func (s *Store) Use(id string) (dir *os.File, release func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	u := s.used[id]
	if u == nil {
		dir, err := openLocked(s.dir, id, unix.LOCK_SH)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EWOULDBLOCK) { // it is being removed
			err = ErrUnknown
		}
		if err != nil {
			return nil, nil, err
		}
		u = &use{dir: dir}
		s.used[id] = u
	}
	u.count++
	return u.dir, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if u.count--; u.count == 0 {
			u.dir.Close()
			delete(s.used, id)
		}
	}, nil
}

// Remove moves the published layer id, if there is one, to the trash, and deletes its files in the background: whoever
// removes layers keeps others from using them meanwhile. ErrInUse: some process uses it.
func (s *Store) Remove(id string) error {
	dir, err := openLocked(s.dir, id, unix.LOCK_EX)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		return ErrInUse
	}
	if err != nil {
		return err
	}
	moved, err := trash.Move(s.dir, id, s.trash)
	dir.Close()
	if err == nil {
		s.sweeper.Go(func() {
			s.sweeping.Lock() // one after the other
			defer s.sweeping.Unlock()
			// Close waits for it for some time: the caller may be a short-lived one that wants the space. What is
			// left, the next Open deletes.
			_ = trash.Discard(s.trash, moved, s.late)
		})
	}
	return err
}

// List returns the IDs of the published layers, sorted.
func (s *Store) List() ([]string, error) {
	names, err := linux.ReadNames(s.dir)
	names = slices.DeleteFunc(names, func(name string) bool { return name == "new" || name == "trash" })
	slices.Sort(names)
	return names, err
}
