package volumes

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/trash"
)

// makeProject creates a volume as a directory with its own project. The directory gets its
// name when it is complete.
func (s *Store) makeProject(name string, bytes, inodes int64) (err error) {
	id, claim, err := s.ids.claim(s.dir)
	if err != nil {
		return fmt.Errorf("finding a project id: %w", err)
	}
	defer claim.Close()
	var undo cleanup.Stack
	defer undo.Undo(&err)
	r := volumeRecord{By: ByProjectQuota, Bytes: bytes, Inodes: inodes, Project: id}
	undo.Push(func() error { claim.Close(); return s.forget(name, r) })
	if err := s.writeFile(name+recordSuffix, r); err != nil {
		return err
	}
	if err := linux.SetProjectQuota(s.dir, id, uint64(bytes), uint64(inodes)); err != nil {
		return err
	}
	temp := trash.NewName()
	if err := linux.MkdirAt(s.dir, temp, 0o700); err != nil {
		return err
	}
	undo.Push(func() error { return s.throwAway(temp) })
	dir, err := linux.OpenDirAt(s.dir, temp, unix.O_RDONLY)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := linux.Fchownat(dir, "", s.uid, s.gid); err != nil {
		return err
	}
	if err := setProject(dir, id, true); err != nil {
		return err
	}
	if err := linux.RenameNew(s.dir, temp, s.dir, name+dirSuffix); err != nil {
		return err
	}
	undo.Release()
	return nil
}

// changeProject gives a volume new limits. If the process is killed between the two steps,
// Open does the second.
func (s *Store) changeProject(name string, r volumeRecord, bytes, inodes int64) error {
	if s.noQuota != nil {
		return fmt.Errorf("it was made with project quota: %w", s.noQuota)
	}
	r.Bytes, r.Inodes = bytes, inodes
	if err := s.writeFile(name+recordSuffix, r); err != nil {
		return err
	}
	return linux.SetProjectQuota(s.dir, r.Project, uint64(bytes), uint64(inodes))
}

func (s *Store) projectRoot(name string, r volumeRecord) (*os.File, error) {
	if s.noQuota != nil {
		return nil, fmt.Errorf("it was made with project quota: %w", s.noQuota)
	}
	dir, err := s.openProject(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	a, err := linux.GetFileAttr(dir)
	if err != nil {
		return nil, err
	}
	if a.Project != r.Project || a.Flags&linux.ProjectInherit == 0 {
		return nil, fmt.Errorf("its directory is in project %d with flags %#x, must be in project %d and hand it down: nothing would limit it",
			a.Project, a.Flags, r.Project)
	}
	return linux.Reopen(dir, unix.O_PATH|unix.O_DIRECTORY)
}

func (s *Store) openProject(name string) (*os.File, error) {
	dir, err := linux.OpenDirAt(s.dir, name+dirSuffix, unix.O_RDONLY)
	if errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return nil, refuse("directory", s.dir.Name()+"/"+name+dirSuffix, "must be a directory and no symlink").because(err)
	}
	return dir, err
}

// adoptProject reconstructs the record of a volume.
func (s *Store) adoptProject(name string) (volumeRecord, error) {
	if s.noQuota != nil {
		return volumeRecord{}, s.noQuota
	}
	dir, err := s.openProject(name)
	if err != nil {
		return volumeRecord{}, err
	}
	defer dir.Close()
	a, err := linux.GetFileAttr(dir)
	if err != nil {
		return volumeRecord{}, err
	}
	q, err := linux.GetProjectQuota(dir, a.Project)
	if err != nil {
		return volumeRecord{}, err
	}
	r := volumeRecord{By: ByProjectQuota, Bytes: int64(q.Bytes), Inodes: int64(q.Inodes), Project: a.Project}
	if _, _, err := checkLimits(r.Bytes, r.Inodes); err != nil || r.Inodes == 0 || !inRange(r.Project) || a.Flags&linux.ProjectInherit == 0 {
		return volumeRecord{}, fmt.Errorf("the directory is in project %d with limits %d and %d, which is not a volume of boxd: remove it", r.Project, r.Bytes, r.Inodes)
	}
	if !s.ids.take(r.Project) {
		return volumeRecord{}, fmt.Errorf("project %d of the directory belongs to another volume or directory: remove it", r.Project)
	}
	return r, nil
}
