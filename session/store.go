package session

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"github.com/boxd/boxd/internal/diskroom"
	"go.etcd.io/bbolt"
)

// The buckets of the database. The key of a session is tenant NUL id; the key of a process
// appends NUL and its own id; a volume's is tenant NUL name; those of sensitive volumes and paths
// are in sensitiveRecord.key. No id can contain a NUL. The keys of the outbox are those of [OutboxEntry].
var (
	metaBucket      = []byte("meta")
	sessionsBucket  = []byte("sessions")
	processBucket   = []byte("processes")
	volumesBucket   = []byte("volumes")
	sensitiveBucket = []byte("sensitive")
	outboxBucket    = []byte("outbox")

	versionKey = []byte("version")
	epochKey   = []byte("epoch")
	searchKey  = []byte("search") // present until the first opening of a new database is complete
)

// change puts one value, or deletes it if value is nil.
type change struct {
	bucket, key, value []byte
}

// pending is a set of changes that are written in one transaction.
type pending struct {
	changes []change
	done    chan error // gets one error, or nil
}

func (p *pending) wait() error { return <-p.done }

// store writes to the database. Every commit is synced (bbolt's default): boxes do not
// survive a power failure, but a database whose pages were written in any order would not
// survive it either. All changes that arrive during a commit share the next one, so the
// number of syncs does not grow with the load.
type store struct {
	mu     sync.Mutex
	db     *bbolt.DB
	queue  []*pending
	closed bool

	roomMu sync.Mutex
	file   *os.File      // of the database, which closes it; nil: no reserve
	room   diskroom.Room // of file, guarded by roomMu

	wake    chan struct{}
	stopped chan struct{}
}

// newStore takes over db, whose file is file.
func newStore(db *bbolt.DB, file *os.File) *store {
	s := &store{db: db, file: file, wake: make(chan struct{}, 1), stopped: make(chan struct{})}
	go s.run()
	return s
}

// reserve is how many bytes of disk the database has beyond its last page. Whatever begins
// something new first asks admit, which leaves the reserve alone; all other changes may use
// it. So on a full disk sessions and processes can still be ended, which makes room. A file
// system without fallocate(2) has no reserve, and one that writes each block to a new place,
// such as btrfs, promises less.
const reserve = 1 << 20

// admit fails if there is no space to begin something new.
func (s *store) admit() error {
	s.mu.Lock()
	db := s.db
	s.mu.Unlock()
	var used int64
	err := db.View(func(tx *bbolt.Tx) error { used = tx.Size(); return nil })
	if err == nil && s.file != nil {
		s.roomMu.Lock()
		err = s.room.Keep(s.file, used+reserve)
		s.roomMu.Unlock()
	}
	if err != nil {
		return &storageError{"session database", filepath.Dir(db.Path()), err}
	}
	return nil
}

// enqueue hands over changes without waiting for them. Sets are written in the order in
// which they were handed over, so a caller decides the order of its records by holding the
// lock of what they describe. An empty set has nothing to wait for.
func (s *store) enqueue(changes ...change) *pending {
	p := &pending{changes: changes, done: make(chan error, 1)}
	if len(changes) == 0 {
		p.done <- nil
		return p
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		p.done <- &storageError{"session database", "", ErrClosed}
		return p
	}
	s.queue = append(s.queue, p)
	select {
	case s.wake <- struct{}{}:
	default: // it will look at the queue anyway
	}
	return p
}

// write is enqueue, and waits.
func (s *store) write(changes ...change) error { return s.enqueue(changes...).wait() }

// close writes what was handed over, and closes the database.
func (s *store) close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	close(s.wake)
	<-s.stopped
	return s.db.Close()
}

func (s *store) run() {
	defer close(s.stopped)
	debug.SetPanicOnFault(true) // bbolt maps the file, which may be cut short
	for range s.wake {
		s.flush()
	}
	s.flush()
}

// flush writes everything that is queued in one transaction.
func (s *store) flush() {
	s.mu.Lock()
	db, batch := s.db, s.queue
	s.queue = nil
	s.mu.Unlock()
	if len(batch) == 0 {
		return
	}
	err := commit(db, batch)
	for _, p := range batch {
		p.changes = nil // a session keeps its last recording, and need not keep the bytes
		p.done <- err
	}
}

// commit turns a panic, with which bbolt reports damaged pages, into an error; the
// transaction is rolled back then.
func commit(db *bbolt.DB, batch []*pending) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = &storageError{"writing the session database", "", fmt.Errorf("%v", r)}
		}
	}()
	err = db.Update(func(tx *bbolt.Tx) error {
		for _, p := range batch {
			if err := apply(tx, p.changes); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return &storageError{"writing the session database", filepath.Dir(db.Path()), err}
	}
	return nil
}

func apply(tx *bbolt.Tx, changes []change) error {
	for _, c := range changes {
		b := tx.Bucket(c.bucket)
		if b == nil {
			return fmt.Errorf("bucket %q is missing", c.bucket)
		}
		var err error
		if c.value == nil {
			err = b.Delete(c.key)
		} else {
			err = b.Put(c.key, c.value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// dbTimeout bounds the wait for bbolt's own lock, which no process should hold while we
// hold the lock file.
const dbTimeout = time.Second
