package images

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/boxd/boxd/engine/spec"
)

// Store is the store of images. It is safe for concurrent use. One process at a time has it open for writing;
// others can read it meanwhile.
//
// Its directory has the database images.db, downloads in new, and the file lock, which the writing process locks. Layers are the engine's. A record of a layer is written
// after the layer is published, and a reference after the records of its layers: at any moment, all that a
// reference needs exists. What a killed process leaves, Open and GC delete.
type Store struct {
	dir  string
	o    Options
	db   *database
	lock *os.File // nil: read-only

	base    context.Context // of shared work, ends with Close
	end     context.CancelCauseFunc
	flights flights

	downloads, adds turns

	garbage chan struct{} // see Garbage

	mu sync.Mutex
	// pins counts the requests that need a layer, by ID, "" for a layer whose ID is not known yet. GC keeps
	// them. Whoever deletes a layer holds mu. Guarded by mu.
	pins map[string]int
}

var (
	errClosed   = errors.New("the store of images is closed")
	errReadOnly = errors.New("the store of images is open for reading only")
)

// What each tenant does at the same time: downloads of layers, and pulls and imports, of which each may fill the disk
// with an archive.
const (
	maxDownloads = 4
	maxAdds      = 8
)

// turns bounds how often each tenant does something at the same time.
type turns struct {
	most int
	all  sync.Map // chan struct{} by tenant
}

// take waits for a turn, which ends with release.
func (t *turns) take(ctx context.Context, tenant string) (release func(), err error) {
	slots, _ := t.all.LoadOrStore(tenant, make(chan struct{}, t.most))
	select {
	case slots.(chan struct{}) <- struct{}{}:
		return func() { <-slots.(chan struct{}) }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Open opens the store in dir, which it creates if it is missing. It deletes what earlier processes left
// unfinished.
func Open(dir string, o Options) (s *Store, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, noSpace(fmt.Errorf("store of images: %w", err))
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Stall = cmp.Or(o.Stall, 30*time.Second)
	o.pause = cmp.Or(o.pause, firstPause)
	s = OpenReadOnly(dir)
	s.db.log = o.Log
	s.o, s.garbage, s.pins, s.downloads.most, s.adds.most = o, make(chan struct{}, 1), map[string]int{}, maxDownloads, maxAdds
	s.base, s.end = context.WithCancelCause(context.Background())
	if s.lock, err = lockStore(dir); err != nil {
		return nil, err
	}
	if err = os.RemoveAll(s.newDir()); err == nil {
		err = os.Mkdir(s.newDir(), 0o700)
	}
	if err == nil {
		err = s.dropLost()
	}
	if err != nil {
		return nil, errors.Join(noSpace(fmt.Errorf("store of images: %w", err)), s.Close())
	}
	return s, nil
}

// OpenReadOnly opens the store in dir for Get, List and nothing else, beside other processes. Of a store that
// does not exist, it reads nothing.
func OpenReadOnly(dir string) *Store {
	return &Store{dir: dir, db: &database{path: filepath.Join(dir, "images.db")}}
}

func lockStore(dir string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, noSpace(fmt.Errorf("store of images: %w", err))
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fmt.Errorf("store of images %s: another process changes it: wait for its end, or ask the daemon if it is that: %w", spec.QuotePath(dir), err)
	}
	return f, nil
}

// Close ends pulls and imports, waits for them and closes the store.
func (s *Store) Close() error {
	if s.lock == nil {
		return nil
	}
	s.flights.close(func() { s.end(errClosed) })
	s.db.writer.Wait()
	return s.lock.Close()
}

func (s *Store) newDir() string { return filepath.Join(s.dir, "new") }

// dropLost drops the records of layers that the engine does not have, and the references and leases that need them.
func (s *Store) dropLost() error {
	ids, err := s.o.Layers.Layers(s.base)
	if err != nil {
		return fmt.Errorf("layers of the engine: %w", err)
	}
	lost := func(id string) bool { _, found := slices.BinarySearch(ids, id); return !found }
	return s.db.update(func(t tables) error { // also creates the database
		layers, err1 := deleteIf(t.layers, func(id string, _ *Unpacked) bool { return lost(id) })
		isLost := func(_ string, r *Image) bool { return slices.ContainsFunc(r.Layers, lost) }
		refs, err2 := deleteIf(t.refs, isLost)
		_, err3 := deleteIf(t.leases, isLost) // so that its holder pulls the image again
		if layers+refs > 0 {
			s.o.Log.Warn("layers of images are lost: the images have to be pulled again", "layers", layers, "images", refs)
		}
		return errors.Join(err1, err2, err3)
	})
}

// pin keeps layers from GC until unpin.
func (s *Store) pin(ids ...string) (unpin func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range ids {
		s.pins[id]++
	}
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, id := range ids {
			if s.pins[id]--; s.pins[id] == 0 {
				delete(s.pins, id)
			}
		}
	}
}

// incoming begins a pull or import.
func (s *Store) incoming(r Request) (*incoming, v1.Platform, error) {
	if s.lock == nil {
		return nil, v1.Platform{}, errReadOnly
	}
	want, err := parsePlatform(cmp.Or(r.Platform, s.o.Platform))
	in := &incoming{req: r}
	in.source = fmt.Sprintf("import %p", in) // what another archive has says nothing of this one
	return in, want, err
}

// spool is a file without a name, so that nothing of it outlives the process.
type spool struct {
	file *os.File
	room func() error // as Options.Room
	left int64        // bytes until it is asked
}

const roomEvery = 16 << 20 // bytes

// newFile makes a spool, whose file the caller closes.
func (s *Store) newFile() (*spool, error) {
	if s.lock == nil {
		return nil, errReadOnly
	}
	f, err := os.CreateTemp(s.newDir(), "unnamed-")
	if err != nil {
		return nil, noSpace(err)
	}
	return &spool{file: f, room: s.o.Room}, os.Remove(f.Name())
}

func (f *spool) Write(b []byte) (int, error) {
	if f.left -= int64(len(b)); f.left < 0 && f.room != nil {
		f.left = roomEvery
		if err := f.room(); err != nil {
			return 0, fmt.Errorf("%w: %w", ErrNoSpace, err)
		}
	}
	return f.file.Write(b)
}

// finish writes the reference.
func (s *Store) finish(in *incoming, stack []Unpacked) (_ Image, err error) {
	img := Image{Name: in.shown, Tenant: in.req.Tenant, Digest: in.digest, Platform: in.platform.String(), Config: in.run, Added: time.Now().UTC()}
	for i, l := range stack {
		// Of a layer that the image has twice, which the empty one often is, the higher hides the lower.
		if !slices.ContainsFunc(stack[i+1:], func(above Unpacked) bool { return above.ID == l.ID }) {
			img.Layers = append(img.Layers, l.ID)
			img.Bytes += l.Bytes
		}
	}
	defer func() {
		if err == nil { // after the unlocking: the caller may use the store
			in.report(Progress{Step: "done", Done: in.totalBytes, Total: in.totalBytes})
		}
	}()
	s.mu.Lock() // other images must not use the quota meanwhile
	defer s.mu.Unlock()
	if _, err := s.allowance(in, img.Bytes); err != nil {
		return Image{}, err
	}
	err = s.db.update(func(t tables) error {
		key := refKey(img.Tenant, in.name.String())
		if old, err := get[Image](t.refs, key); err == nil && old != nil {
			img.Used = old.Used
			if old.Digest == img.Digest {
				img.Added = old.Added
			} else {
				s.noteGarbage()
			}
		}
		return put(t.refs, key, img)
	})
	return img, err
}

// Get returns an image that the tenant can use, its own before a shared one: by reference as people write it, by
// digest, or by the first 12 or more digits of one. ErrUnknown: there is none, or it is not complete.
func (s *Store) Get(tenant, reference string) (img Image, err error) {
	err = s.db.view(func(t tables) error {
		_, rec, err := find(t, tenant, reference)
		if rec != nil {
			img = *rec
		}
		return err
	})
	if err == nil && img.Digest == "" {
		err = unknown(reference) // no database
	}
	return img, err
}

func unknown(reference string) error {
	return fmt.Errorf("%w %s: pull or import it first", ErrUnknown, spec.Quote(reference))
}

// minPrefix is how many digits of a digest name an image.
const minPrefix = 12

// find returns the record that a tenant means by reference, and its key.
func find(t tables, tenant, ref string) (key []byte, rec *Image, err error) {
	tenants := slices.Compact([]string{tenant, Shared})
	var repository, digest string
	r, nameErr := spec.CheckReference("image", ref)
	if nameErr == nil {
		for _, owner := range tenants {
			key := refKey(owner, r.String())
			if rec, err := get[Image](t.refs, key); rec != nil || err != nil {
				return key, rec, err
			}
		}
		repository, digest = r.Repository+":", r.Digest
	}
	if digits := strings.TrimPrefix(ref, "sha256:"); len(digits) >= minPrefix && len(digits) <= 64 && strings.Trim(digits, "0123456789abcdef") == "" {
		repository, digest = "", "sha256:"+digits
	}
	if digest == "" {
		return nil, nil, cmp.Or(nameErr, unknown(ref))
	}
	for _, owner := range tenants {
		var ambiguous error
		err = each(t.refs, func(k string, got *Image) {
			o, name, _ := strings.Cut(k, "\x00")
			if o != owner || !strings.HasPrefix(got.Digest, digest) || !strings.HasPrefix(name, repository) {
				return
			}
			if rec != nil && rec.Digest != got.Digest {
				ambiguous = fmt.Errorf("%w %s: the digests of several images begin so, give more digits", ErrUnknown, spec.Quote(ref))
			}
			key, rec = []byte(k), got
		})
		if err = cmp.Or(err, ambiguous); rec != nil || err != nil {
			return key, rec, err
		}
	}
	return nil, nil, unknown(ref)
}

// List returns the images that the tenant can use, sorted by name.
func (s *Store) List(tenant string) (all []Image, err error) {
	err = s.db.view(func(t tables) error {
		return each(t.refs, func(_ string, r *Image) {
			if r.Tenant == tenant || r.Tenant == Shared {
				all = append(all, *r)
			}
		})
	})
	slices.SortFunc(all, func(a, b Image) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(b.Tenant, a.Tenant)) // one's own before a shared one
	})
	return all, err
}

// Remove removes a reference of the tenant. The layers stay until GC, and those of a lease until it ends.
func (s *Store) Remove(ctx context.Context, tenant, reference string) error {
	return s.change(func(t tables) error {
		key, rec, err := find(t, tenant, reference)
		if err != nil {
			return err
		}
		if rec.Tenant != tenant {
			return fmt.Errorf("%w %s of the tenant: %w", ErrUnknown, spec.Quote(reference), &spec.FieldError{Field: "shared", Value: "false", Rule: "must be true, because all tenants share this image; only administrators can remove it"})
		}
		s.noteGarbage()
		return t.refs.Delete(key)
	})
}

// Garbage returns a channel that has an element if GC can delete something since it ran or was about to.
func (s *Store) Garbage() <-chan struct{} { return s.garbage }

func (s *Store) noteGarbage() {
	select {
	case s.garbage <- struct{}{}:
	default:
	}
}

// change is for all changes of the database that GC must not see half.
func (s *Store) change(f func(tables) error) error {
	if s.lock == nil {
		return errReadOnly
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.db.update(f)
}

// Lease keeps the image from GC until Release with the same holder. The holder is the key of a session; an earlier
// lease of it ends. It survives a restart.
func (s *Store) Lease(tenant, reference, holder string) (img Image, err error) {
	if s.lock == nil {
		return Image{}, errReadOnly
	}
	err = s.db.view(func(t tables) error { // GC changes nothing meanwhile
		key, rec, err := find(t, tenant, reference)
		if err != nil {
			return err
		}
		rec.Used = time.Now().UTC()
		img = *rec
		s.db.leaseLater(holder, &lease{rec, key, rec.Used})
		return nil
	})
	return img, err
}

// Leased returns the image that holder has leased, ErrUnknown if it has none.
func (s *Store) Leased(holder string) (img Image, err error) {
	err = s.db.view(func(t tables) error {
		rec, err := s.db.leased(t, holder)
		if rec != nil {
			img = *rec
		}
		return err
	})
	if err == nil && img.Digest == "" {
		err = fmt.Errorf("%w: %s has leased none", ErrUnknown, spec.Quote(holder))
	}
	return img, err
}

// Release ends the lease of holder. Without one it does nothing.
func (s *Store) Release(holder string) error {
	if s.lock == nil {
		return errReadOnly
	}
	err := s.db.view(func(t tables) error {
		rec, err := s.db.leased(t, holder)
		if rec == nil || err != nil {
			return err
		}
		if _, ref, err := find(t, rec.Tenant, rec.Name); err != nil || ref.Digest != rec.Digest {
			s.noteGarbage() // the lease was all that kept it
		}
		return nil
	})
	s.db.leaseLater(holder, &lease{})
	return err
}

// RetainLeases ends the leases of all holders for whom keep is false.
func (s *Store) RetainLeases(keep func(holder string) bool) error {
	return s.change(func(t tables) error {
		_, err := deleteIf(t.leases, func(holder string, _ *Image) bool { return !keep(holder) })
		return err
	})
}
