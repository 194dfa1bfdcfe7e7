package volumes

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// tree is the record of a directory that LimitTree has given a project. Its limits
// are only in the file system.
type tree struct {
	Handle string `json:"handle"` // of the directory: name_to_handle_at(2)
	FS     string `json:"fs"`     // f_fsid of statfs(2)
	Path   string `json:"path"`   // for people
	// Walking: not all that is in it has the project yet, or still has it.
	Walking bool `json:"walking"`
}

// LimitTree bounds the directory dir of the host, with all that is in it already, by
// project quota; 0 is no limit of that kind, and 0 for both takes the project away as
// well. What is in it may be more than the limit: then nothing can be added. ErrNoQuota
// if its file system has none.
//
// Whoever owns a file can take it out of its project outside of user namespaces: it
// holds for boxes, and for whoever means no harm. Symlinks, sockets and FIFOs that are
// there before do not count. Something that is in a project already, of another program
// or of another limited directory, is refused, and so is a tree of more than 500 levels.
func (s *Store) LimitTree(dir *os.File, bytes, inodes int64) error {
	if bytes < 0 || bytes > MaxBytes || inodes < 0 || inodes > MaxInodes {
		return refuse("limit", fmt.Sprintf("%d bytes, %d inodes", bytes, inodes), "must be 0 to %d bytes and 0 to %d inodes", int64(MaxBytes), MaxInodes)
	}
	f, err := linux.Reopen(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := linux.Fstat(f)
	if err != nil {
		return err
	}
	if err := quotaOn(f); err != nil {
		if bytes == 0 && inodes == 0 && errors.Is(err, ErrNoQuota) {
			return nil // there is no limit to take away
		}
		return err
	}
	defer s.locks.Lock(fmt.Sprintf("tree %d %d", st.Dev, st.Ino))()
	a, err := linux.GetFileAttr(f)
	if err != nil {
		return err
	}
	switch {
	case a.Project == 0 && bytes == 0 && inodes == 0:
		return nil
	case a.Project == 0:
		return s.limitNew(f, bytes, inodes)
	}
	t, err := s.ownTree(f, a)
	switch {
	case err != nil:
		return err
	case bytes == 0 && inodes == 0:
		return s.unlimit(f, t, a.Project)
	}
	return s.limitAgain(f, t, a.Project, bytes, inodes)
}

// limitNew gives dir, which is in no project, one of its own.
func (s *Store) limitNew(dir *os.File, bytes, inodes int64) error {
	t, err := describe(dir)
	if err != nil {
		return err
	}
	if err := s.forgetTrees(dir, t.FS); err != nil {
		return err
	}
	id, claim, err := s.ids.claim(dir)
	if err != nil {
		return fmt.Errorf("finding a project id: %w", err)
	}
	defer claim.Close()
	t.Walking = true
	if err := s.writeFile(idText(id)+treeSuffix, t); err != nil {
		return errors.Join(err, s.ids.drop(dir, id))
	}
	err = s.limitAgain(dir, t, id, bytes, inodes)
	if err != nil {
		claim.Close()
		return errors.Join(err, s.unlimit(dir, t, id))
	}
	return nil
}

// limitAgain sets the limits of a tree with project id, after putting into it what is
// not yet. They are set at last: a walk by someone without CAP_SYS_RESOURCE would fail
// at what is too much.
func (s *Store) limitAgain(dir *os.File, t tree, id uint32, bytes, inodes int64) error {
	if t.Walking {
		w := walk{from: 0, to: id, inherit: true, stale: func(project uint32) bool { return s.ids.isStale(dir, project) }}
		if err := w.top(dir); err != nil {
			return err
		}
		t.Walking = false
		if err := s.writeFile(idText(id)+treeSuffix, t); err != nil {
			return err
		}
	}
	return linux.SetProjectQuota(dir, id, uint64(bytes), uint64(inodes))
}

// unlimit takes a tree out of project id and gives the id back.
func (s *Store) unlimit(dir *os.File, t tree, id uint32) error {
	if err := linux.SetProjectQuota(dir, id, 0, 0); err != nil {
		return err
	}
	t.Walking = true
	if err := s.writeFile(idText(id)+treeSuffix, t); err != nil {
		return err
	}
	w := walk{from: id, to: 0, last: true}
	if err := w.top(dir); err != nil {
		return err
	}
	if err := unlink(s.dir, idText(id)+treeSuffix); err != nil {
		return err
	}
	return s.ids.drop(dir, id)
}

// ownTree returns the record of dir, which is in the project of a, if it is ours and
// dir is the top of it. A lost record is made again.
func (s *Store) ownTree(dir *os.File, a linux.FileAttr) (tree, error) {
	if !inRange(a.Project) {
		return tree{}, refuse("directory", dir.Name(), `is in project %d, which is not boxd's, and cannot be in two: "lsattr -pd" shows it, "chattr -R -P -p 0" changes it`, a.Project)
	}
	here, err := describe(dir)
	if err != nil {
		return tree{}, err
	}
	text, err := s.readFile(idText(a.Project) + treeSuffix)
	lost := errors.Is(err, unix.ENOENT)
	if err != nil && !lost {
		return tree{}, err
	}
	var t tree
	if !lost && decodeStrictly(text, &t) == nil {
		if t.Handle != here.Handle {
			return tree{}, refuse("directory", dir.Name(), "is in project %d, that of the limited directory %.200q: limit that one, or take its limit away", a.Project, t.Path)
		}
		return t, nil
	}
	inside, err := parentHas(dir, a.Project)
	if err != nil {
		return tree{}, err
	}
	// An id that is on record, but not as this one, is a volume's.
	if inside || lost && !s.ids.takeFree(a.Project) {
		return tree{}, refuse("directory", dir.Name(), "is in a volume, or in another limited directory (project %d)", a.Project)
	}
	here.Walking = true // who knows
	return here, s.writeFile(idText(a.Project)+treeSuffix, here)
}

// parentHas says whether the directory above dir is in project id as well.
func parentHas(dir *os.File, id uint32) (bool, error) {
	parent, err := linux.OpenAt(dir, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return false, err
	}
	defer parent.Close()
	same, err := sameFile(dir, parent)
	if err != nil || same { // the root of a mount
		return false, err
	}
	a, err := linux.GetFileAttr(parent)
	if errors.Is(err, unix.ENOTTY) {
		return false, nil // another file system
	}
	return a.Project == id, err
}

func sameFile(a, b *os.File) (bool, error) {
	x, err := linux.Fstat(a)
	if err != nil {
		return false, err
	}
	y, err := linux.Fstat(b)
	return x.Dev == y.Dev && x.Ino == y.Ino, err
}

// describe says which directory dir is.
func describe(dir *os.File) (tree, error) {
	handle, _, err := unix.NameToHandleAt(int(dir.Fd()), "", unix.AT_EMPTY_PATH)
	if err != nil {
		return tree{}, &os.PathError{Op: "name_to_handle_at", Path: dir.Name(), Err: err}
	}
	fs, err := linux.Fstatfs(dir)
	if err != nil {
		return tree{}, err
	}
	path, err := os.Readlink(linux.FdPath(dir))
	return tree{
		Handle: fmt.Sprintf("%d:%s", handle.Type(), hex.EncodeToString(handle.Bytes())),
		FS:     fmt.Sprintf("%x:%x", uint32(fs.Fsid.Val[0]), uint32(fs.Fsid.Val[1])),
		Path:   path,
	}, err
}

// forgetTrees removes the records of directories on the file system of dir that have been
// deleted: nothing belongs to their projects any more.
func (s *Store) forgetTrees(dir *os.File, fs string) error {
	all, err := entries(s.dir)
	if err != nil {
		return err
	}
	for _, name := range all {
		id, ok := treeID(name)
		if !ok {
			continue
		}
		var t tree
		text, err := s.readFile(name)
		if err != nil || decodeStrictly(text, &t) != nil || t.FS != fs {
			continue
		}
		q, err := linux.GetProjectQuota(dir, id)
		if err != nil {
			return err
		}
		if q.UsedBytes != 0 || q.UsedInodes != 0 {
			continue
		}
		if err := unlink(s.dir, name); err != nil {
			return err
		}
		if err := s.ids.drop(dir, id); err != nil {
			return err
		}
	}
	return nil
}

// LimitOf returns the project limit that the directory dir is under, with By
// "project-quota" and no name; ok is false if it is under none. 0 means no limit of that
// kind.
func LimitOf(dir *os.File) (st State, ok bool, err error) {
	f, err := linux.Reopen(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return State{}, false, err
	}
	defer f.Close()
	if on, _ := linux.ProjectQuotaOn(f); !on {
		return State{}, false, nil
	}
	a, err := linux.GetFileAttr(f)
	if err != nil || a.Project == 0 {
		return State{}, false, err
	}
	q, err := linux.GetProjectQuota(f, a.Project)
	if err != nil || q.Bytes == 0 && q.Inodes == 0 {
		return State{}, false, err
	}
	return State{
		Bytes: int64(q.Bytes), Inodes: int64(q.Inodes),
		UsedBytes: int64(q.UsedBytes), UsedInodes: int64(q.UsedInodes), By: ByProjectQuota,
	}, true, nil
}
