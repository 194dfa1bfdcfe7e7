package langbot

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// sessionsBucket holds one record per session, by physical ID. Fence and grants have buckets
// of their own in the same database.
var sessionsBucket = []byte("sessions")

// dbTimeout bounds the wait for bbolt's lock, which nobody else should hold: the state
// directory has a lock of its own.
const dbTimeout = 5 * time.Second

// openDB opens the database. A damaged one is renamed and replaced by an empty one; the
// sessions that it recorded are removed, because nothing is known about them. An error of the
// system, such as a full disk, is not damage: it must not readmit anybody who was kept out.
func (s *Server) openDB(path string) (*bbolt.DB, error) {
	db, err := tryOpenDB(path)
	if err == nil {
		return db, nil
	}
	var refused syscall.Errno
	if _, e := os.Stat(path); e != nil || errors.As(err, &refused) || errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("database of the door for LangBot: %w", err)
	}
	aside := path + ".damaged-" + time.Now().UTC().Format("20060102T150405")
	s.log.Error("the database of the door for LangBot cannot be read and is kept aside: its sessions and grants are lost", "kept", aside, "error", err)
	if e := os.Rename(path, aside); e != nil {
		return nil, fmt.Errorf("keeping a damaged database aside: %w", e)
	}
	if db, err = tryOpenDB(path); err != nil {
		return nil, fmt.Errorf("database of the door for LangBot: %w", err)
	}
	return db, nil
}

// tryOpenDB opens the database and reads all of it, so that damage shows here, where it is
// handled.
func tryOpenDB(path string) (db *bbolt.DB, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // a truncated file faults
	defer func() {
		if r := recover(); r != nil { // bbolt panics on damaged pages, too
			err = fmt.Errorf("%s: %v", filepath.Base(path), r)
		}
		if err != nil && db != nil {
			db.Close() // best effort
			db = nil
		}
	}()
	if db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: dbTimeout}); err != nil {
		return nil, err
	}
	var exists bool
	err = db.View(func(tx *bbolt.Tx) error { exists = tx.Bucket(sessionsBucket) != nil; return nil })
	if err == nil && !exists { // written only if needed: an existing database must open on a full disk
		err = db.Update(func(tx *bbolt.Tx) error {
			_, err := tx.CreateBucketIfNotExists(sessionsBucket)
			return err
		})
	}
	if err != nil {
		return db, err
	}
	return db, db.View(func(tx *bbolt.Tx) error {
		return tx.ForEach(func(_ []byte, b *bbolt.Bucket) error {
			return b.ForEach(func(k, v []byte) error {
				if len(v) > 0 {
					_ = v[len(v)-1] // touches the last page of a long value
				}
				return nil
			})
		})
	})
}

// store writes to the database. Changes that arrive during a commit are written together in
// the next one.
type store struct {
	db *bbolt.DB

	mu      sync.Mutex
	queue   []*change
	writing bool
	writer  sync.WaitGroup
}

// change puts one value, or deletes it if it is nil.
type change struct {
	key, value []byte
	done       chan error // receives one value
}

// wait returns once the change is on disk.
func (c *change) wait() error { return <-c.done }

// put queues a record without waiting. Changes are written in the order in which they were
// queued.
func (s *store) put(key string, value sessionRecord) *change {
	b, err := json.Marshal(value)
	if err != nil {
		c := &change{done: make(chan error, 1)}
		c.done <- err
		return c
	}
	return s.enqueue([]byte(key), b)
}

// remove queues a deletion.
func (s *store) remove(key string) *change { return s.enqueue([]byte(key), nil) }

func (s *store) enqueue(key, value []byte) *change {
	c := &change{key, value, make(chan error, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.queue = append(s.queue, c)
	if !s.writing {
		s.writing = true
		s.writer.Go(s.write)
	}
	return c
}

// close writes the queued changes, and closes the database.
func (s *store) close() error {
	s.writer.Wait()
	return s.db.Close()
}

// write commits until the queue is empty.
func (s *store) write() {
	debug.SetPanicOnFault(true) // a truncated file faults
	for {
		s.mu.Lock()
		batch := s.queue
		s.queue = nil
		s.writing = len(batch) > 0
		s.mu.Unlock()
		if len(batch) == 0 {
			return
		}
		err := s.commit(batch)
		for _, c := range batch {
			c.done <- err
		}
	}
}

func (s *store) commit(batch []*change) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
		}
		if err != nil {
			err = fmt.Errorf("database of the door for LangBot: %w", err)
		}
	}()
	return s.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(sessionsBucket)
		for _, c := range batch {
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
	})
}

// load calls each with every record.
func (s *store) load(each func(key string, value []byte)) error {
	return s.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(sessionsBucket).ForEach(func(k, v []byte) error {
			each(string(k), v)
			return nil
		})
	})
}
