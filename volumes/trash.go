package volumes

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// errClosing ends a deletion that goes on with the next Open.
var errClosing = errors.New("closing")

// throwAway deletes name, whatever it is, from the data directory.
func (s *Store) throwAway(name string) error {
	trash, moved, err := s.toTrash(name)
	if err != nil {
		return err
	}
	defer trash.Close()
	return s.discard(trash, moved)
}

// toTrash moves name out of the data directory: from then on it is only a matter of
// time. The caller closes trash.
func (s *Store) toTrash(name string) (trash *os.File, moved string, err error) {
	if trash, err = s.openTrash(); err != nil {
		return nil, "", err
	}
	moved = newName()
	if err := rename(s.dir, name, trash, moved, false); err != nil {
		trash.Close()
		return nil, "", err
	}
	return trash, moved, nil
}

func (s *Store) openTrash() (*os.File, error) {
	if err := linux.MkdirAt(s.dir, trashName, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	return openDir(s.dir, trashName, unix.O_RDONLY)
}

// emptyTrash goes on where a killed process, or Close, has stopped. What cannot be deleted
// stays for the next time.
func (s *Store) emptyTrash() {
	trash, err := s.openTrash()
	if err != nil {
		return
	}
	defer trash.Close()
	names, _ := entries(trash)
	for _, name := range names {
		if errors.Is(s.discard(trash, name), errClosing) {
			return
		}
	}
}

// discard deletes name from the trash, and gives back the project that it was in. Boxes
// have written it, and may still do: nothing is followed, and however deep it is, two
// directories are open at a time, since those that are not empty are moved to the trash
// themselves.
func (s *Store) discard(trash *os.File, name string) error {
	project := s.projectOf(trash, name)
	for work := []string{name}; len(work) > 0; {
		last := len(work) - 1
		next := work[last]
		work = work[:last]
		err := unlink(trash, next)
		if err == nil || errors.Is(err, unix.ENOENT) {
			continue // it may be in the trash of a Store that empties it at the same time
		}
		if !errors.Is(err, unix.EISDIR) {
			return fmt.Errorf("deleting what was in it: %w", err)
		}
		more, err := s.discardDir(trash, next)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("deleting what was in it: %w", err)
		}
		work = append(work, more...)
	}
	if project == 0 {
		return nil
	}
	return s.ids.clean(s.dir, project)
}

// discardDir deletes the directory name. It returns what it has moved to the trash.
func (s *Store) discardDir(trash *os.File, name string) (moved []string, err error) {
	dir, err := openDir(trash, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	// Somebody may make files as fast as they are deleted, but has an end of inodes:
	// most passes are for that.
	for range 100 {
		for {
			select {
			case <-s.closing:
				return moved, errClosing
			default:
			}
			names, reading := dir.Readdirnames(1024)
			for _, entry := range names {
				err := unlink(dir, entry)
				if errors.Is(err, unix.EISDIR) {
					if err = linux.RmdirAt(dir, entry); errors.Is(err, unix.ENOTEMPTY) {
						to := newName()
						if err = rename(dir, entry, trash, to, false); err == nil {
							moved = append(moved, to)
						}
					}
				}
				if err != nil && !errors.Is(err, unix.ENOENT) {
					return moved, err
				}
			}
			if reading != nil {
				break
			}
		}
		if err = linux.RmdirAt(trash, name); !errors.Is(err, unix.ENOTEMPTY) {
			break
		}
		if _, err := dir.Seek(0, 0); err != nil {
			return moved, err
		}
	}
	if errors.Is(err, unix.ENOENT) {
		err = nil
	}
	return moved, err
}

// projectOf is the project of ours that the directory name in the trash was in; 0 if it
// was in none.
func (s *Store) projectOf(trash *os.File, name string) uint32 {
	if !s.quota {
		return 0
	}
	dir, err := openDir(trash, name, unix.O_RDONLY)
	if err != nil {
		return 0
	}
	defer dir.Close()
	a, err := linux.GetFileAttr(dir)
	if err != nil || !inRange(a.Project) {
		return 0
	}
	return a.Project
}
