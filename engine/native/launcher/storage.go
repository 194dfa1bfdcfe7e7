package launcher

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/keyed"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/mounts"
	"github.com/boxd/boxd/volumes"
)

// storage holds the volumes of a service, and which boxes use them. It is nil in a launcher
// without a data directory.
type storage struct {
	dataStore[volumes.Store]
	private  string // where images are mounted
	uid, gid uint32 // the client's

	copies volumeCopies

	releasing keyed.Locks // by volume, held while its mount is counted or released; before mu

	mu       sync.Mutex
	holders  map[string]map[string]int // how many mounts of a volume a box has, by volume and box
	removing map[string]bool
	opened   map[string]int // how many users this process's own mount of a volume has
	// unreadable is the last reported problem with listing volumes.
	unreadable string
}

// openStorage opens the data directory, if there is one. If that fails, boxes still work, and
// requests for a volume get the reason.
func (l *Launcher) openStorage() error {
	dir := l.service.DataDir
	if dir == "" {
		return nil
	}
	private := filepath.Join(l.instance.private(), "volumes")
	if err := os.Mkdir(private, 0o700); err != nil {
		return fmt.Errorf("preparing volumes: %w", err)
	}
	l.storage = &storage{
		dataStore: dataStore[volumes.Store]{dir: dir}, private: private, uid: uint32(l.service.ClientUID), gid: uint32(l.service.ClientGID),
		holders: map[string]map[string]int{}, removing: map[string]bool{}, opened: map[string]int{},
	}
	if err := l.storage.ready(); err != nil {
		fmt.Fprintf(os.Stderr, "boxd-init: no volumes: %v\n", oneline.Error(err))
	}
	return nil
}

// close closes the store. The volumes stay, and boxes keep their mounts.
func (s *storage) close() error {
	if s == nil || s.store == nil {
		return nil
	}
	s.copies.giveUp(func(*volumeCopy) bool { return true }, "the launcher is ending")
	return s.store.Close()
}

// ready opens the store unless it is open, or returns why there are no volumes.
func (s *storage) ready() error {
	if s == nil {
		return fmt.Errorf("this launcher keeps no volumes: it was started without a data directory (boxd-init --data-dir): %w", engine.ErrUnenforceable)
	}
	return s.open(func() (*volumes.Store, error) { return volumes.Open(s.dir, s.private, s.uid, s.gid) })
}

// hold notes that a box has a mount of a volume, or is about to. It refuses while the volume
// is being removed. It ignores mounts of the host, whose volume is "".
func (s *storage) hold(volume, box string) error {
	if volume == "" {
		return nil
	}
	if s == nil {
		return s.ready()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.removing[volume] {
		return &engine.FieldError{Field: "mount volume", Value: spec.Quote(volume), Rule: "is just being removed"}
	}
	if s.holders[volume] == nil {
		s.holders[volume] = map[string]int{}
	}
	s.holders[volume][box]++
	return nil
}

// holdAdopted is hold for a box that already has the volume, even if this launcher has no
// data directory.
func (s *storage) holdAdopted(volume, box string) {
	if s != nil {
		_ = s.hold(volume, box) // cannot fail: no volume is being removed yet
	}
}

// drop takes back one hold.
func (s *storage) drop(volume, box string) {
	if s == nil || volume == "" {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	boxes := s.holders[volume]
	if boxes[box] > 1 {
		boxes[box]--
		return
	}
	// dropAll may have removed the entry already.
	if delete(boxes, box); len(boxes) == 0 {
		delete(s.holders, volume)
	}
}

// dropAll takes back all holds of a box that is gone.
func (s *storage) dropAll(box string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for volume, boxes := range s.holders {
		if delete(boxes, box); len(boxes) == 0 {
			delete(s.holders, volume)
		}
	}
}

// root opens a volume. Without an error, the caller calls done after use. An image is mounted
// in this process's namespace only until then, because each new box begins with a copy of
// everything that is mounted there. A box's own mount of it does not need this one.
func (s *storage) root(name string) (root *os.File, done func(), err error) {
	if err := s.ready(); err != nil {
		return nil, nil, err
	}
	s.enter(name)
	if root, err = s.store.Root(name); err != nil {
		s.leave(name)
		return nil, nil, volumeError(name, err)
	}
	return root, func() { root.Close(); s.leave(name) }, nil
}

// enter counts a user of this process's mount of a volume, after any release of it has ended.
func (s *storage) enter(name string) {
	defer s.releasing.Lock(name)()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.opened[name]++
}

// leave ends a use of the mount. The last user releases the mount.
func (s *storage) leave(name string) {
	defer s.releasing.Lock(name)()
	s.mu.Lock()
	s.opened[name]--
	last := s.opened[name] == 0
	if last {
		delete(s.opened, name)
	}
	s.mu.Unlock()
	if !last {
		return
	}
	if err := s.store.Release(name); err != nil {
		fmt.Fprintf(os.Stderr, "boxd-init: volume %q: releasing it: %v\n", name, oneline.Error(err))
	}
}

// holdersOf returns the boxes that have a volume.
func (s *storage) holdersOf(name string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Keys(s.holders[name]))
}

// remove removes a volume that no box has.
func (s *storage) remove(name string) error {
	if err := s.ready(); err != nil {
		return err
	}
	s.mu.Lock()
	if boxes := s.holders[name]; len(boxes) > 0 {
		first := slices.Min(slices.Collect(maps.Keys(boxes)))
		s.mu.Unlock()
		return &engine.FieldError{Field: "volume", Value: spec.Quote(name), Rule: fmt.Sprintf("is in use by box %q: detach it there, or remove the box, first", first)}
	}
	if s.removing[name] {
		s.mu.Unlock()
		return &engine.FieldError{Field: "volume", Value: spec.Quote(name), Rule: "is just being removed by another request"}
	}
	s.removing[name] = true
	s.mu.Unlock()
	err := s.store.Remove(name)
	s.mu.Lock()
	delete(s.removing, name)
	s.mu.Unlock()
	return volumeError(name, err)
}

// noteUnreadable logs a problem with listing volumes, once until it changes, because volumes
// are listed again and again.
func (s *storage) noteUnreadable(err error) {
	text := ""
	if err != nil {
		text = oneline.Error(err)
	}
	s.mu.Lock()
	news := text != s.unreadable
	s.unreadable = text
	s.mu.Unlock()
	if news && text != "" {
		fmt.Fprintf(os.Stderr, "boxd-init: volumes that cannot be read: %s\n", text)
	}
}

// volumeFields maps the fields of requests that package volumes refuses to those of package
// engine. Errors about other fields are not the client's fault.
var volumeFields = map[string]string{
	"volume name": "volume", "volume bytes": "volume.bytes", "volume inodes": "volume.inodes",
	"limit": "directory.bytes", "directory": "directory.path",
}

// volumeError translates the errors of package volumes into those of package engine.
func volumeError(name string, err error) error {
	var refused *volumes.Error
	switch {
	case errors.As(err, &refused) && volumeFields[refused.Field] != "":
		return &engine.FieldError{Field: volumeFields[refused.Field], Value: refused.Value, Rule: refused.Rule}
	case errors.Is(err, volumes.ErrUnknown):
		return &engine.FieldError{Field: "mount volume", Value: spec.Quote(name), Rule: "does not exist: it has to be made first"}
	case errors.Is(err, volumes.ErrShrink):
		return &engine.FieldError{Field: "volume.bytes", Value: spec.Quote(name), Rule: fmt.Sprintf("cannot become smaller: %v", err)}
	case errors.Is(err, volumes.ErrWritten):
		return &engine.FieldError{Field: "volume", Value: spec.Quote(name), Rule: "was written to while it was copied: a process may still have a file of it open"}
	case errors.Is(err, volumes.ErrNoCopy):
		return &engine.FieldError{Field: "volume", Value: spec.Quote(name), Rule: "is a directory with project quota, and only images can be copied: export it, and import it into another volume"}
	case errors.Is(err, volumes.ErrBusy):
		return &engine.FieldError{Field: "volume", Value: spec.Quote(name), Rule: "is in use, and a mounted image cannot grow"}
	case errors.Is(err, volumes.ErrNoLoop), errors.Is(err, volumes.ErrNoQuota):
		return fmt.Errorf("%w: %w", engine.ErrUnenforceable, err)
	}
	return err
}

// source is an open directory or file, which may lie in a volume.
type source struct {
	*mounts.Source
	done func() // ends the use of the volume; nil without one
}

// Close closes the source. Trees made from it stay.
func (s *source) Close() {
	s.Source.Close()
	if s.done != nil {
		s.done()
	}
}

// openSource opens what m mounts, on the host or in a volume. With mayMake it makes a missing
// directory.
func (l *Launcher) openSource(m engine.Mount, mayMake bool) (*source, error) {
	if m.Volume == "" {
		src, err := l.hostSource(m, mayMake)
		if err != nil {
			return nil, err
		}
		return &source{Source: src}, nil
	}
	root, done, err := l.storage.root(m.Volume)
	if err != nil {
		return nil, err
	}
	open := mounts.OpenIn
	if mayMake {
		open = mounts.MakeIn
	}
	src, err := open(root, m)
	if err != nil {
		done()
		return nil, fieldError(err)
	}
	return &source{Source: src, done: done}, nil
}

// sizeLimit returns the size limit of src if a box can fill it through the mount m, see
// mounted.Limit. The kernel shows a project quota only for directories (ext4_statfs,
// xfs_fs_statfs).
func (l *Launcher) sizeLimit(m engine.Mount, src *mounts.Source) int64 {
	if m.ReadOnly || m.Layer != "" {
		return 0
	}
	if m.Volume != "" {
		st, err := l.storage.store.Get(m.Volume)
		if err != nil || !src.IsDir && st.By != volumes.ByImage {
			return 0
		}
		return st.Bytes
	}
	if !src.IsDir {
		return 0
	}
	st, ok, err := volumes.LimitOf(src.File)
	switch {
	case err != nil || !ok:
		return 0
	case st.Bytes > 0:
		return st.Bytes
	case st.Inodes > 0:
		return engine.Unlimited
	}
	return 0
}
