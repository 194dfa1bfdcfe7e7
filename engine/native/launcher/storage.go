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
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/mounts"
	"github.com/boxd/boxd/volumes"
)

// storage is the volumes of a service, and who has them. A nil storage is that of a
// launcher without a data directory.
type storage struct {
	dir      string // the data directory
	private  string // where images are mounted
	uid, gid uint32 // the client's

	opening sync.Mutex
	store   *volumes.Store // nil until the data directory could be opened

	mu       sync.Mutex
	holders  map[string]map[string]int // how often a box has a volume, by volume and box
	removing map[string]bool
	opened   map[string]int // who needs this process's own mount of a volume
	// releasing is closed when that mount of a volume has been taken away.
	releasing map[string]chan struct{}
	// unreadable is what was wrong with volumes when they were listed last.
	unreadable string
}

// openStorage opens the data directory, if there is one. A bad one is no reason to have
// no boxes: who asks for a volume is told.
func (l *Launcher) openStorage() error {
	dir := l.service.dataDir
	if dir == "" {
		return nil
	}
	private := filepath.Join(l.instance.private(), "volumes")
	if err := os.Mkdir(private, 0o700); err != nil {
		return fmt.Errorf("preparing volumes: %w", err)
	}
	l.storage = &storage{
		dir: dir, private: private, uid: uint32(l.service.uid), gid: uint32(l.service.gid),
		holders: map[string]map[string]int{}, removing: map[string]bool{},
		opened: map[string]int{}, releasing: map[string]chan struct{}{},
	}
	if err := l.storage.ready(); err != nil {
		fmt.Fprintf(os.Stderr, "boxd-init: no volumes: %v\n", oneline.Error(err))
	}
	return nil
}

// close lets go of the volumes. They stay, and boxes keep what they have mounted.
func (s *storage) close() error {
	if s == nil || s.store == nil {
		return nil
	}
	return s.store.Close()
}

// ready makes sure that there can be volumes, or says why there are none. What was
// wrong with the data directory may have been put right meanwhile.
func (s *storage) ready() error {
	if s == nil {
		return fmt.Errorf("this launcher keeps no volumes: it was started without a data directory (boxd-init --data-dir): %w", engine.ErrUnenforceable)
	}
	s.opening.Lock()
	defer s.opening.Unlock()
	if s.store != nil {
		return nil
	}
	if err := checkDataDir(s.dir); err != nil {
		return fmt.Errorf("%w: %w", engine.ErrUnenforceable, err)
	}
	store, err := volumes.Open(s.dir, s.private, s.uid, s.gid)
	if err != nil {
		return fmt.Errorf("%w: data directory %q: %w", engine.ErrUnenforceable, s.dir, err)
	}
	s.store = store
	return nil
}

// hold notes that a box has a volume, or is about to. It is refused while the volume is
// removed. Mounts of the host, whose volume is "", are nobody's business here.
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

// holdAdopted is hold for a box that has the volume already, whatever this launcher
// keeps.
func (s *storage) holdAdopted(volume, box string) {
	if s != nil {
		_ = s.hold(volume, box) // nothing is removed yet
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
	// Or it is gone already, with its box.
	if delete(boxes, box); len(boxes) == 0 {
		delete(s.holders, volume)
	}
}

// dropAll takes back what a box that is gone has held.
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

// root opens a volume; done, which comes without an error, ends the use. Only
// meanwhile is an image mounted in this process's namespace: every box that is made
// begins with a copy of all that is, and what a box has goes on without.
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

func (s *storage) enter(name string) {
	for {
		s.mu.Lock()
		wait := s.releasing[name]
		if wait == nil {
			s.opened[name]++
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		<-wait
	}
}

func (s *storage) leave(name string) {
	s.mu.Lock()
	if s.opened[name]--; s.opened[name] > 0 {
		s.mu.Unlock()
		return
	}
	delete(s.opened, name)
	gone := make(chan struct{})
	s.releasing[name] = gone
	s.mu.Unlock()
	if err := s.store.Release(name); err != nil {
		fmt.Fprintf(os.Stderr, "boxd-init: volume %q: letting go of it: %v\n", name, oneline.Error(err))
	}
	s.mu.Lock()
	delete(s.releasing, name)
	s.mu.Unlock()
	close(gone)
}

// make makes a volume, or changes its limits.
func (s *storage) make(v engine.Volume) error {
	s.enter(v.Name)
	defer s.leave(v.Name)
	return volumeError(v.Name, s.store.Make(v.Name, v.Bytes, v.Inodes))
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

// noteUnreadable says what is wrong with volumes, if anything, when that has changed: they
// are listed again and again. One bad volume is no reason to know nothing of the others.
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

// volumeFields are what package volumes refuses because of the request, and not because of
// what it found.
var volumeFields = map[string]string{
	"volume name": "volume", "volume bytes": "volume.bytes", "volume inodes": "volume.inodes",
	"limit": "directory.bytes", "directory": "directory.path",
}

// volumeError makes the conditions of package volumes those of the engine.
func volumeError(name string, err error) error {
	var refused *volumes.Error
	switch {
	case errors.As(err, &refused) && volumeFields[refused.Field] != "":
		return &engine.FieldError{Field: volumeFields[refused.Field], Value: refused.Value, Rule: refused.Rule}
	case errors.Is(err, volumes.ErrUnknown):
		return &engine.FieldError{Field: "mount volume", Value: spec.Quote(name), Rule: "does not exist: it has to be made first"}
	case errors.Is(err, volumes.ErrShrink):
		return &engine.FieldError{Field: "volume.bytes", Value: spec.Quote(name), Rule: fmt.Sprintf("cannot become smaller: %v", err)}
	case errors.Is(err, volumes.ErrBusy):
		return &engine.FieldError{Field: "volume", Value: spec.Quote(name), Rule: fmt.Sprintf("is in use: %v", err)}
	case errors.Is(err, volumes.ErrNoLoop), errors.Is(err, volumes.ErrNoQuota):
		return fmt.Errorf("%w: %w", engine.ErrUnenforceable, err)
	}
	return err
}

// source is where a mount comes from.
type source struct {
	*mounts.Source
	done  func()
	limit int64 // see mounted
}

// Close ends the use of the source. Trees made from it stay.
func (s *source) Close() {
	s.Source.Close()
	if s.done != nil {
		s.done()
	}
}

// openSource opens what m mounts, on the host or in a volume.
func (l *Launcher) openSource(m engine.Mount) (*source, error) {
	if m.Volume == "" {
		src, err := l.hostSource(m, false)
		if err != nil {
			return nil, err
		}
		return &source{Source: src, limit: hostLimit(src, m)}, nil
	}
	root, done, err := l.storage.root(m.Volume)
	if err != nil {
		return nil, err
	}
	src, err := mounts.OpenIn(root, m)
	if err != nil {
		done()
		return nil, fieldError(err)
	}
	s := &source{Source: src, done: done}
	if !m.ReadOnly {
		s.limit = l.storage.limit(m.Volume, src)
	}
	return s, nil
}

// limit is the size of a volume that can be filled through src. Of a project quota
// only directories tell (ext4_statfs, xfs_fs_statfs).
func (s *storage) limit(name string, src *mounts.Source) int64 {
	st, err := s.store.Get(name)
	if err != nil || !src.IsDir && st.By != volumes.ByImage {
		return 0
	}
	return st.Bytes
}

// hostLimit is the size that a directory of the host is bound to, if it is: noLimit
// where only the number of files is.
func hostLimit(src *mounts.Source, m engine.Mount) int64 {
	if m.ReadOnly || !src.IsDir {
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
