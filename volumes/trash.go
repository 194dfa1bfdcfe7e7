package volumes

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// errClosing interrupts a deletion. The next Open continues it.
var errClosing = errors.New("closing")

// throwAway deletes the file or directory name from the data directory.
func (s *Store) throwAway(name string) error {
	trash, moved, err := s.toTrash(name)
	if err != nil {
		return err
	}
	defer trash.Close()
	return s.discard(trash, moved)
}

// toTrash moves name from the data directory to the trash, where it will be deleted
// eventually, even if this process is killed. The caller closes trash.
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

// emptyTrash continues the deletions of a killed process or of a Store that was closed. What
// cannot be deleted stays until the next Open.
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

// discard deletes name from the trash and releases its project. Boxes have written it, and may
// still be writing: discard follows no symlink, and moves directories that are not empty to the
// trash itself, so that only two directories are open at a time, however deep the tree is.
func (s *Store) discard(trash *os.File, name string) error {
	project := s.projectOf(trash, name)
	for work := []string{name}; len(work) > 0; {
		last := len(work) - 1
		next := work[last]
		work = work[:last]
		err := unlink(trash, next)
		if err == nil || errors.Is(err, unix.ENOENT) {
			continue // another call may be emptying the trash at the same time
		}
		if !errors.Is(err, unix.EISDIR) {
			return fmt.Errorf("deleting its content: %w", err)
		}
		more, err := s.discardDir(trash, next)
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("deleting its content: %w", err)
		}
		work = append(work, more...)
	}
	if project == 0 {
		return nil
	}
	return s.ids.clean(s.dir, project)
}

// discardDir deletes the directory name, and returns the new names of the directories that it
// has moved to the trash.
func (s *Store) discardDir(trash *os.File, name string) (moved []string, err error) {
	dir, err := openDir(trash, name, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	// A box may create files as fast as they are deleted, until it has used up its inodes.
	// Most passes are for that case.
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

// projectOf returns the project, in our range, of the directory name in the trash, or 0.
func (s *Store) projectOf(trash *os.File, name string) uint32 {
	if s.noQuota != nil {
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
