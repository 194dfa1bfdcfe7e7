package session

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"time"

	"go.etcd.io/bbolt"
)

// The buckets of the database. A session's key is tenant NUL id, a process's has
// NUL and its own id behind that; no id can contain a NUL.
var (
	metaBucket     = []byte("meta")
	sessionsBucket = []byte("sessions")
	processBucket  = []byte("processes")

	versionKey = []byte("version")
	epochKey   = []byte("epoch")
	searchKey  = []byte("search") // there until the first opening of a new database is complete
)

// change puts one value, or deletes it if it is nil.
type change struct {
	bucket, key, value []byte
}

// pending is a set of changes that is written as a whole.
type pending struct {
	changes []change
	done    chan error // gets one
}

func (p *pending) wait() error { return <-p.done }

// store writes to the database. Every commit is synced (bbolt's default): boxes do
// not survive a loss of power, but a database whose pages were written in any order
// would not survive it either. What is handed over while a commit is under way goes
// into the next one together, so the number of syncs does not grow with the load.
type store struct {
	mu     sync.Mutex
	db     *bbolt.DB
	room   room
	queue  []*pending
	closed bool

	wake    chan struct{}
	stopped chan struct{}
}

// newStore takes over db, which is in file.
func newStore(db *bbolt.DB, file *os.File) *store {
	s := &store{db: db, room: room{file: file}, wake: make(chan struct{}, 1), stopped: make(chan struct{})}
	go s.run()
	return s
}

// admit fails if there is no space to begin something new: the rest is for its end.
func (s *store) admit() error {
	s.mu.Lock()
	db := s.db
	s.mu.Unlock()
	if err := s.room.check(db); err != nil {
		return &storageError{"session database", filepath.Dir(db.Path()), err}
	}
	return nil
}

// enqueue hands over changes without waiting. Sets are written in the order in which
// they were handed over, so a caller that holds the lock of what it describes
// decides the order of its records.
func (s *store) enqueue(changes ...change) *pending {
	p := &pending{changes: changes, done: make(chan error, 1)}
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

// write is enqueue and wait.
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
	debug.SetPanicOnFault(true) // a page that is beyond the end of a cut file
	for range s.wake {
		s.flush()
	}
	s.flush()
}

// flush writes all that is queued in one transaction.
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
		p.done <- err
	}
}

// commit turns a panic of bbolt, which is how it reports damaged pages, into an
// error; the transaction is rolled back then.
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

// dbTimeout bounds the wait for bbolt's own lock. Nobody should have it while we
// hold the lock file.
const dbTimeout = time.Second
