package volumes

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/trash"
)

// throwAway deletes the file or directory name from the data directory.
func (s *Store) throwAway(name string) error {
	old, moved, err := s.toTrash(name)
	if err != nil {
		return err
	}
	defer old.Close()
	return s.discard(old, moved)
}

// toTrash moves name from the data directory to the trash, where it will be deleted
// eventually, even if this process is killed. The caller closes the trash.
func (s *Store) toTrash(name string) (old *os.File, moved string, err error) {
	if old, err = s.openTrash(); err != nil {
		return nil, "", err
	}
	if moved, err = trash.Move(s.dir, name, old); err != nil {
		old.Close()
		return nil, "", err
	}
	return old, moved, nil
}

func (s *Store) openTrash() (*os.File, error) {
	if err := linux.MkdirAt(s.dir, trashName, 0o700); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, err
	}
	return linux.OpenDirAt(s.dir, trashName, unix.O_RDONLY)
}

// emptyTrash continues the deletions of a killed process or of a Store that was closed. What
// cannot be deleted stays until the next Open.
func (s *Store) emptyTrash() {
	old, err := s.openTrash()
	if err != nil {
		return
	}
	defer old.Close()
	trash.Empty(old, s.closing, func(name string) error { return s.discard(old, name) })
}

// discard deletes name from the trash and releases its project.
func (s *Store) discard(old *os.File, name string) error {
	project := s.projectOf(old, name)
	if err := trash.Discard(old, name, s.closing); err != nil || project == 0 {
		return err
	}
	return s.ids.clean(s.dir, project)
}

// projectOf returns the project, in our range, of the directory name in the trash, or 0.
func (s *Store) projectOf(old *os.File, name string) uint32 {
	if s.noQuota != nil {
		return 0
	}
	dir, err := linux.OpenDirAt(old, name, unix.O_RDONLY)
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
