package session

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/boxd/boxd/internal/diskroom"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// loaded is the content of a database.
type loaded struct {
	sessions  []sessionRecord
	processes []processRecord
	volumes   []volumeRecord
	sensitive []sensitiveRecord
	outbox    []OutboxEntry
	kept      []string // volumes, see [volumes]
	epoch     uint64   // counts the openings, from 1, including this one
	// fresh: there was no usable database, and no opening since has completed the search
	// for sessions by their boxes.
	fresh bool
	// damage is why a database was moved aside, to the path aside.
	damage error
	aside  string
	// file is the file of the open database, which closes it.
	file *os.File
	// uncounted: the disk was full, so this opening was not counted.
	uncounted bool
}

// errForeign: the database was written by another version. It is intact, so unlike a damaged
// one it is not moved aside: after an accidental downgrade of boxd nothing is lost.
var errForeign = errors.New("written by another version of boxd")

// openStore opens the database at path. It renames a database that it cannot read, and
// writes whatever it could read into a new one.
func openStore(path string) (*store, loaded, error) {
	db, got, err := openDB(path)
	if err != nil && !damaged(err) {
		return nil, got, fmt.Errorf("session database %s: %w", path, err)
	}
	if err != nil {
		got.damage, got.aside = err, path+".corrupt-"+time.Now().UTC().Format("20060102T150405.000000000")
		if err := os.Rename(path, got.aside); err != nil {
			return nil, got, fmt.Errorf("keeping a damaged session database aside (%w): %w", got.damage, err)
		}
		if db, err = salvage(path, &got); err != nil {
			return nil, got, fmt.Errorf("session database %s: %w", path, err)
		}
	}
	st := newStore(db, got.file)
	_ = st.admit() // allocates the reserve as far as possible; later calls report a lack of space
	return st, got, nil
}

// damaged distinguishes a database that is useless from one that is out of reach.
func damaged(err error) bool {
	var errno syscall.Errno
	return !errors.As(err, &errno) && !errors.Is(err, bolterrors.ErrTimeout) && !errors.Is(err, errForeign)
}

// salvage creates a new database from what was read of a damaged one.
func salvage(path string, got *loaded) (*bbolt.DB, error) {
	db, fresh, err := openDB(path)
	if err != nil {
		return nil, err
	}
	got.fresh, got.file, got.epoch = fresh.fresh, fresh.file, max(fresh.epoch, got.epoch+1)
	err = db.Update(func(tx *bbolt.Tx) error {
		changes := []change{epoch(got.epoch)}
		for _, name := range got.kept {
			changes = append(changes, change{metaBucket, keptKey(name), []byte{1}})
		}
		for i := range got.sessions {
			changes = append(changes, got.sessions[i].put())
		}
		for i := range got.processes {
			changes = append(changes, got.processes[i].put())
		}
		for i := range got.volumes {
			changes = append(changes, got.volumes[i].put())
		}
		for i := range got.sensitive {
			changes = append(changes, got.sensitive[i].put())
		}
		for _, e := range got.outbox {
			changes = append(changes, e.put())
		}
		return apply(tx, changes)
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return db, nil
}

// openDB opens or creates the database and reads all of it. On failure got has whatever was
// readable.
func openDB(path string) (db *bbolt.DB, got loaded, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // bbolt maps the file, which may be cut short
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("damaged: %v", r)
		}
		if err != nil && db != nil {
			db.Close() // best effort: it was only read
			db = nil
		}
	}()
	db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: dbTimeout, OpenFile: func(name string, flag int, mode os.FileMode) (*os.File, error) {
		f, err := os.OpenFile(name, flag, mode)
		got.file = f
		return f, err
	}})
	if err != nil {
		return nil, got, err
	}
	if err := db.View(func(tx *bbolt.Tx) error { return keepOld(tx, path) }); err != nil {
		return db, got, err
	}
	err = db.Update(func(tx *bbolt.Tx) error { return beginEpoch(tx, &got) })
	if got.uncounted = diskroom.IsFull(err) && got.epoch > 1; got.uncounted {
		err = nil // existing sessions can still be read and ended
	}
	if err != nil {
		return db, got, err
	}
	return db, got, db.View(func(tx *bbolt.Tx) error { return readAll(tx, &got) })
}

// keepOld copies a database of an older version before anything in it changes, so that the
// older boxd can continue with the copy. The version is appended to the path: boxd.db.1.
func keepOld(tx *bbolt.Tx, path string) error {
	meta := tx.Bucket(metaBucket)
	if meta == nil {
		return nil // a new database
	}
	v := meta.Get(versionKey)
	if len(v) != 1 || v[0] == 0 || v[0] >= recordVersion {
		return nil
	}
	copied := fmt.Sprintf("%s.%d", path, v[0])
	f, err := os.OpenFile(copied+".new", os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err == nil {
		_, err = tx.WriteTo(f)
		err = errors.Join(err, f.Sync(), f.Close())
	}
	if err == nil {
		err = os.Rename(copied+".new", copied)
	}
	if err != nil {
		os.Remove(copied + ".new") // best effort: the next opening overwrites it
		return fmt.Errorf("keeping a copy of a database of version %d, which this boxd changes: %w", v[0], err)
	}
	return nil
}

// epoch returns the change that counts an opening.
func epoch(n uint64) change {
	return change{metaBucket, epochKey, binary.BigEndian.AppendUint64(nil, n)}
}

// beginEpoch checks the version, creates the buckets of a new database, and counts this
// opening.
func beginEpoch(tx *bbolt.Tx, got *loaded) error {
	for _, name := range [][]byte{metaBucket, sessionsBucket, processBucket, volumesBucket, sensitiveBucket, outboxBucket} {
		if _, err := tx.CreateBucketIfNotExists(name); err != nil {
			return err
		}
	}
	meta := tx.Bucket(metaBucket)
	switch v := meta.Get(versionKey); {
	case v == nil:
		if err := errors.Join(meta.Put(versionKey, []byte{recordVersion}), meta.Put(searchKey, []byte{1})); err != nil {
			return err
		}
	case len(v) == 1 && v[0] == 1:
		if err := meta.Put(versionKey, []byte{recordVersion}); err != nil {
			return err
		}
	case len(v) != 1 || v[0] != recordVersion:
		return fmt.Errorf("%w: its format is %x, this one knows %d: run that version, or move the file away, so that sessions are recovered from their boxes alone",
			errForeign, v, recordVersion)
	}
	got.fresh = meta.Get(searchKey) != nil
	if v := meta.Get(epochKey); len(v) == 8 {
		got.epoch = binary.BigEndian.Uint64(v)
	}
	got.epoch++
	return apply(tx, []change{epoch(got.epoch)})
}

// readAll reads every record that can be read, and returns what was wrong with the others.
func readAll(tx *bbolt.Tx, got *loaded) error {
	meta := tx.Bucket(metaBucket).Cursor()
	for k, _ := meta.Seek([]byte(keptPrefix)); k != nil && strings.HasPrefix(string(k), keptPrefix); k, _ = meta.Next() {
		got.kept = append(got.kept, string(k[len(keptPrefix):]))
	}
	errs := readRecords(tx.Bucket(sessionsBucket), decodeSession, &got.sessions)
	errs = append(errs, readRecords(tx.Bucket(processBucket), decodeProcess, &got.processes)...)
	errs = append(errs, readRecords(tx.Bucket(volumesBucket), decodeVolume, &got.volumes)...)
	errs = append(errs, readRecords(tx.Bucket(sensitiveBucket), decodeSensitive, &got.sensitive)...)
	errs = append(errs, readRecords(tx.Bucket(outboxBucket), decodeOutbox, &got.outbox)...)
	if len(errs) > 0 {
		return fmt.Errorf("%d records are damaged, such as: %w", len(errs), errs[0])
	}
	return nil
}

// readRecords appends the records of b to records one by one, because bbolt panics at a
// damaged page.
func readRecords[T any](b *bbolt.Bucket, decode func(key, value []byte) (T, error), records *[]T) (errs []error) {
	if b == nil { // of an older version, on a disk that is full
		return nil
	}
	_ = b.ForEach(func(k, v []byte) error { // fn returns no error
		r, err := decode(k, v)
		if err != nil {
			errs = append(errs, err)
		} else {
			*records = append(*records, r)
		}
		return nil
	})
	return errs
}
