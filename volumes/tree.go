package volumes

import (
	"encoding/hex"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// tree is the record of a directory to which LimitTree has given a project. Its limits are
// only in the file system.
type tree struct {
	Handle string `json:"handle"` // of the directory: name_to_handle_at(2)
	FS     string `json:"fs"`     // f_fsid of statfs(2)
	Path   string `json:"path"`   // for people
	// Walking means that the walk that moves the content into the project, or out of it,
	// is not finished.
	Walking bool `json:"walking"`
}

// LimitTree limits the directory dir of the host, including its existing content, by project
// quota. 0 means no limit of that kind, and 0 for both removes the project as well. The content
// may already exceed the limit: then nothing can be added. The error is ErrNoQuota if the file
// system does not have project quota.
//
// The limit holds for boxes. Outside of user namespaces, the owner of a file can remove it from
// its project. Symlinks, sockets and FIFOs that existed before do not count. LimitTree refuses a
// tree with anything that already is in a project, of another program or of another limited
// directory, and a tree of more than 500 levels.
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
			return nil // there is no limit to remove
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

// limitNew gives dir, which is in no project, its own project.
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

// limitAgain completes the walk of a tree with project id, and then sets its limits. With the
// limits already set, a walk without CAP_SYS_RESOURCE would fail as soon as it exceeds them.
func (s *Store) limitAgain(dir *os.File, t tree, id uint32, bytes, inodes int64) error {
	if t.Walking {
		w := walk{from: 0, to: id, stale: func(project uint32) bool { return s.ids.isStale(dir, project) }}
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

// unlimit removes a tree from project id and releases the ID.
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
	if err := linux.UnlinkAt(s.dir, idText(id)+treeSuffix); err != nil {
		return err
	}
	return s.ids.drop(dir, id)
}

// ownTree returns the record of dir, whose attributes are a, if its project is one of boxd and
// dir is its top directory. It reconstructs a lost record.
func (s *Store) ownTree(dir *os.File, a linux.FileAttr) (tree, error) {
	if !inRange(a.Project) {
		return tree{}, refuse("directory", dir.Name(), `is in project %d, which is not boxd's, and a directory cannot be in two projects: "lsattr -pd" shows it, "chattr -R -P -p 0" changes it`, a.Project)
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
	// An ID that is on record although this record is lost belongs to a volume.
	if inside || lost && !s.ids.take(a.Project) {
		return tree{}, refuse("directory", dir.Name(), "is in a volume, or in another limited directory (project %d)", a.Project)
	}
	here.Walking = true // the walk may not have been finished
	return here, s.writeFile(idText(a.Project)+treeSuffix, here)
}

// parentHas reports whether the directory above dir is in project id as well.
func parentHas(dir *os.File, id uint32) (bool, error) {
	parent, err := linux.OpenAt(dir, "..", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return false, err
	}
	defer parent.Close()
	here, err := linux.Fstat(dir)
	if err != nil {
		return false, err
	}
	above, err := linux.Fstat(parent)
	if err != nil || here.Dev == above.Dev && here.Ino == above.Ino { // dir is the root of a mount
		return false, err
	}
	a, err := linux.GetFileAttr(parent)
	if errors.Is(err, unix.ENOTTY) {
		return false, nil // another file system
	}
	return a.Project == id, err
}

// describe returns a record of dir.
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

// forgetTrees removes the records of deleted directories on the file system of dir: those to
// whose projects nothing belongs any more.
func (s *Store) forgetTrees(dir *os.File, fs string) error {
	all, err := linux.ReadNames(s.dir)
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
		if err := linux.UnlinkAt(s.dir, name); err != nil {
			return err
		}
		if err := s.ids.drop(dir, id); err != nil {
			return err
		}
	}
	return nil
}

// LimitOf returns the project limit that applies to the directory dir, with By "project-quota"
// and no name; ok reports whether there is one. 0 means no limit of that kind.
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
