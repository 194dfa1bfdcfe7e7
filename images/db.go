package images

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/diskroom"
)

// database is the file images.db. It is open during single operations only, so that processes that read share
// it with the one that writes: bbolt locks the file while it is open. An operation takes some 0.2 ms, a change
// waits for the disk.
type database struct {
	path string
	mu   sync.RWMutex // as bbolt's lock of the file, which is polled for every 50 ms

	pendingMu sync.Mutex        // taken after mu
	pending   map[string]*lease // by holder: leases that the next update writes
	writing   bool              // an update is about to begin
	writer    sync.WaitGroup    // that update
	log       *slog.Logger
}

// lease is the beginning of a lease, or without an image, the end.
type lease struct {
	img  *Image
	key  []byte    // of the reference that was used; nil: none
	used time.Time // when
}

// leaseLater notes a lease, and writes it without letting the caller wait for the disk. A kill in between costs a
// session that begins its image if that is removed and collected before the session leases it again. A caller who
// begins a lease holds mu for reading.
func (d *database) leaseLater(holder string, l *lease) {
	d.pendingMu.Lock()
	defer d.pendingMu.Unlock()
	if d.pending == nil {
		d.pending = map[string]*lease{}
	}
	if before := d.pending[holder]; before != nil && l.key == nil {
		l.key, l.used = before.key, before.used
	}
	d.pending[holder] = l
	if d.writing {
		return
	}
	d.writing = true
	d.writer.Go(func() {
		if err := d.update(func(tables) error { return nil }); err != nil {
			d.log.Warn("leases of images cannot be written", "error", err) // the next update tries again
		}
	})
}

// writePending brings the leases into t. written forgets them, when t is on disk.
func (d *database) writePending(t tables) (written func(), err error) {
	d.pendingMu.Lock()
	defer d.pendingMu.Unlock()
	d.writing = false
	all := maps.Clone(d.pending)
	for holder, l := range all {
		if l.img == nil {
			err = errors.Join(err, t.leases.Delete([]byte(holder)))
		} else {
			err = errors.Join(err, put(t.leases, []byte(holder), l.img))
		}
		rec, e := get[Image](t.refs, l.key)
		if err = errors.Join(err, e); rec != nil {
			rec.Used = l.used
			err = errors.Join(err, put(t.refs, l.key, rec))
		}
	}
	return func() {
		d.pendingMu.Lock()
		defer d.pendingMu.Unlock()
		maps.DeleteFunc(d.pending, func(holder string, l *lease) bool { return all[holder] == l })
	}, err
}

// leased returns what holder has leased, nil for nothing.
func (d *database) leased(t tables, holder string) (*Image, error) {
	d.pendingMu.Lock()
	defer d.pendingMu.Unlock()
	if l := d.pending[holder]; l != nil {
		return l.img, nil
	}
	return get[Image](t.leases, []byte(holder))
}

// dbTimeout is how long an operation waits for those of other processes.
const dbTimeout = 10 * time.Second

// The buckets, and their keys: tenant, NUL, full name; ID of a layer; holder.
var (
	refsBucket   = []byte("references") // Image
	layersBucket = []byte("layers")     // Unpacked
	leasesBucket = []byte("leases")     // Image, as it was when the lease began
)

func refKey(tenant, name string) []byte { return []byte(tenant + "\x00" + name) }

// tables are the three buckets within one transaction.
type tables struct{ refs, layers, leases *bbolt.Bucket }

// view calls f with the tables, read-only. A database that does not exist is empty, and f is not called.
func (d *database) view(f func(tables) error) error {
	d.mu.RLock()
	defer d.mu.RUnlock()
	err := d.open(true, func(db *bbolt.DB) error {
		return db.View(func(tx *bbolt.Tx) error {
			t := tables{tx.Bucket(refsBucket), tx.Bucket(layersBucket), tx.Bucket(leasesBucket)}
			if t.refs == nil || t.layers == nil || t.leases == nil {
				return nil // its creator was killed
			}
			return f(t)
		})
	})
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// update calls f with the tables. What f has changed is on disk when update returns nil, and undone otherwise.
func (d *database) update(f func(tables) error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.open(false, func(db *bbolt.DB) error {
		var written func()
		err := db.Update(func(tx *bbolt.Tx) error {
			refs, err1 := tx.CreateBucketIfNotExists(refsBucket)
			layers, err2 := tx.CreateBucketIfNotExists(layersBucket)
			leases, err3 := tx.CreateBucketIfNotExists(leasesBucket)
			err := errors.Join(err1, err2, err3)
			if err != nil {
				return err
			}
			t := tables{refs, layers, leases}
			if written, err = d.writePending(t); err != nil {
				return err
			}
			return f(t)
		})
		if err == nil {
			written()
		}
		return err
	})
}

// open opens the database for one operation. bbolt panics on a damaged page and faults on a truncated file.
func (d *database) open(readOnly bool, operation func(*bbolt.DB) error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = d.damaged(fmt.Errorf("%v", r))
		}
	}()
	db, err := bbolt.Open(d.path, 0o600, &bbolt.Options{Timeout: dbTimeout, ReadOnly: readOnly})
	var refused syscall.Errno
	switch {
	case errors.As(err, &refused), errors.Is(err, bolterrors.ErrTimeout):
		return noSpace(fmt.Errorf("database of images: %w", err))
	case err != nil:
		return d.damaged(err)
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	return noSpace(operation(db))
}

func (d *database) damaged(err error) error {
	return fmt.Errorf("database of images %s is damaged: %w; move %s away, and pull the images again", spec.QuotePath(d.path), err, spec.QuotePath(filepath.Dir(d.path)))
}

// noSpace adds ErrNoSpace to an error that a full disk has caused.
func noSpace(err error) error {
	if err != nil && diskroom.IsFull(err) && !errors.Is(err, ErrNoSpace) {
		return fmt.Errorf("%w: free some, or remove images: %w", ErrNoSpace, err)
	}
	return err
}

// put stores v as JSON.
func put(b *bbolt.Bucket, key []byte, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return b.Put(key, text)
}

// get reads a value. Without one it is nil.
func get[T any](b *bbolt.Bucket, key []byte) (*T, error) {
	text := b.Get(key)
	if text == nil {
		return nil, nil
	}
	return decode[T](key, text)
}

// each calls f for all values of a bucket.
func each[T any](b *bbolt.Bucket, f func(key string, v *T)) error {
	return b.ForEach(func(key, text []byte) error {
		v, err := decode[T](key, text)
		if err == nil {
			f(string(key), v)
		}
		return err
	})
}

// deleteIf deletes the values of a bucket for which f is true, and says how many.
func deleteIf[T any](b *bbolt.Bucket, f func(key string, v *T) bool) (n int, err error) {
	var keys []string // a bucket must not change while it is read
	err = each(b, func(key string, v *T) {
		if f(key, v) {
			keys = append(keys, key)
		}
	})
	for _, key := range keys {
		err = errors.Join(err, b.Delete([]byte(key)))
	}
	return len(keys), err
}

func decode[T any](key, text []byte) (*T, error) {
	v := new(T)
	if err := json.Unmarshal(text, v); err != nil {
		return nil, fmt.Errorf("record %s of the database of images: %w: remove the image and pull it again", spec.Quote(string(key)), err)
	}
	return v, nil
}
