package history

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// Options of a [Store]. Dir is required; a bound of 0 is its default.
type Options struct {
	Dir string // is created if missing; nothing else may use it
	// SessionEntries and SessionBytes bound the entries of one session: the oldest ones are forgotten.
	// A session always keeps its last entry.
	SessionEntries int
	SessionBytes   int64
	// TenantBytes bounds the entries of one tenant, including those of removed sessions.
	TenantBytes int64
	// Keep is the age at which an entry is forgotten.
	Keep time.Duration
	// UsageRows bounds the counters of one tenant; see [Others]. KeepUsage is the age at which they
	// are forgotten.
	UsageRows int
	KeepUsage time.Duration
	// Report is called with errors that no caller of the Store gets. Nil: they are logged.
	Report func(error)
}

// Defaults of [Options].
const (
	DefaultSessionEntries = 1000
	DefaultSessionBytes   = 8 << 20
	DefaultTenantBytes    = 64 << 20
	DefaultKeep           = 7 * 24 * time.Hour
	DefaultUsageRows      = 20000
	DefaultKeepUsage      = 400 * 24 * time.Hour
)

const (
	// batchDelay is how long an entry waits for others before it is stored with them.
	batchDelay = 250 * time.Millisecond
	// maxPending bounds the bytes of entries that wait to be stored. Append waits above it.
	maxPending = 16 << 20
	// segmentBytes is the size above which the journal continues in another file.
	segmentBytes = 4 << 20
	// retryDelay is the pause after a batch that could not be stored.
	retryDelay = 5 * time.Second
	// sweepEvery is the time between two searches for old entries.
	sweepEvery = time.Hour
	dbVersion  = 1
	dbTimeout  = time.Second // for bbolt's own lock, which no other process should hold
)

// ErrClosed: the store is closed.
var ErrClosed = errors.New("history is closed")

// Store keeps entries. It is safe for concurrent use.
type Store struct {
	o  Options
	db *bbolt.DB

	// writing serialises the entries of the journal. It is held during write(2), and taken before mu,
	// which is not: who only reads never waits for a disk.
	writing sync.Mutex
	journal journal
	next    uint64 // number of the next entry

	mu       sync.Mutex
	room     *sync.Cond // signals that bytes, failed or closed has changed
	pending  []item     // in the journal and not in the database, in order
	storing  []item     // those before pending, which are being stored
	bytes    int64      // of both, and of entries that are being written to the journal
	failed   error      // why the last batch could not be stored
	refused  error      // why the last entry was refused, nil after one that was not
	totals   map[totalKey]Counters
	labelled map[string]int                 // by tenant: those of totals that have labels
	days     map[string]map[string]Counters // by day (YYYY-MM-DD, UTC) and tenant
	closed   bool
	meters   map[string]Meter // those that Open found; they do not change
	reports  sync.WaitGroup   // calls of Report
	damaged  sync.Once        // reports the first damaged entry
	wake     chan struct{}
	stop     context.Context
	cancel   context.CancelFunc
	finished chan struct{}
}

// Open opens the history in o.Dir, or makes it. A database that
// cannot be read is kept aside, and o.Report is told.
func Open(o Options) (*Store, error) {
	o.setDefaults()
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("history: %w", err)
	}
	path := filepath.Join(o.Dir, "history.db")
	s := &Store{o: o, journal: journal{dir: o.Dir}, wake: make(chan struct{}, 1), finished: make(chan struct{})}
	s.room = sync.NewCond(&s.mu)
	applied, err := s.load(path)
	if foreign := (*versionError)(nil); err != nil && !errors.As(err, &foreign) && !isUnreachable(err) {
		aside := path + ".corrupt-" + time.Now().UTC().Format("20060102T150405.000000000")
		if rerr := os.Rename(path, aside); rerr != nil {
			return nil, fmt.Errorf("history: keeping a damaged database aside (%w): %w", err, rerr)
		}
		o.Report(fmt.Errorf("history was damaged (%w): kept as %s, and begun anew", err, aside))
		applied, err = s.load(path)
	}
	if err != nil {
		return nil, fmt.Errorf("history %s: %w", path, err)
	}
	s.stop, s.cancel = context.WithCancel(context.Background())
	if err := s.replay(applied); err != nil {
		s.cancel()
		return nil, errors.Join(fmt.Errorf("history: %w", err), s.db.Close())
	}
	go s.run()
	return s, nil
}

func (o *Options) setDefaults() {
	set(&o.SessionEntries, DefaultSessionEntries)
	set(&o.SessionBytes, DefaultSessionBytes)
	set(&o.TenantBytes, DefaultTenantBytes)
	set(&o.Keep, DefaultKeep)
	set(&o.UsageRows, DefaultUsageRows)
	set(&o.KeepUsage, DefaultKeepUsage)
	if o.Report == nil {
		o.Report = func(err error) { slog.Error("history", "error", err) }
	}
}

func set[T int | int64 | time.Duration](v *T, value T) {
	if *v == 0 {
		*v = value
	}
}

// versionError: the database is intact, and not ours to read.
type versionError struct{ version []byte }

func (e *versionError) Error() string {
	return fmt.Sprintf("its format is %x, this boxd knows %d: run the version of boxd that wrote it, or move the file away", e.version, dbVersion)
}

// isUnreachable tells a database that cannot be reached from one that cannot be read.
func isUnreachable(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno) || errors.Is(err, bolterrors.ErrTimeout)
}

func openDB(path string) (db *bbolt.DB, err error) {
	defer func() {
		if err != nil && db != nil {
			db.Close() // best effort: nothing was written
			db = nil
		}
	}()
	err = guarded(func() error {
		if db, err = bbolt.Open(path, 0o600, &bbolt.Options{Timeout: dbTimeout}); err != nil {
			return err
		}
		made := false
		err := db.View(func(tx *bbolt.Tx) error {
			meta := tx.Bucket(metaBucket)
			if made = meta != nil; !made {
				return nil
			}
			if v := meta.Get(versionKey); len(v) != 1 || v[0] != dbVersion {
				return &versionError{slices.Clone(v)}
			}
			return nil
		})
		if err != nil || made {
			return err
		}
		return db.Update(func(tx *bbolt.Tx) error {
			for _, name := range buckets {
				if _, err := tx.CreateBucketIfNotExists(name); err != nil {
					return err
				}
			}
			return tx.Bucket(metaBucket).Put(versionKey, []byte{dbVersion})
		})
	})
	return db, err
}

// guarded turns a panic, with which bbolt reports damaged pages, into an error. bbolt maps the file,
// which may be cut short.
func guarded(fn func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("damaged: %v", r)
		}
	}()
	return fn()
}

func (s *Store) update(fn func(*bbolt.Tx) error) error {
	return guarded(func() error { return s.db.Update(fn) })
}

func (s *Store) view(fn func(*bbolt.Tx) error) error {
	return guarded(func() error { return s.db.View(fn) })
}

// load opens the database, reads the parts that are kept in memory, and returns the number of the last
// entry that it has. On failure nothing is open.
func (s *Store) load(path string) (applied uint64, err error) {
	if s.db, err = openDB(path); err != nil {
		return 0, err
	}
	err = s.view(func(tx *bbolt.Tx) (err error) {
		applied = appliedIn(tx)
		if s.totals, err = readTotals(tx); err != nil {
			return err
		}
		s.labelled = map[string]int{}
		for k := range s.totals {
			if k.labels != "" {
				s.labelled[k.tenant]++
			}
		}
		if s.meters, err = readMeters(tx); err != nil {
			return err
		}
		s.days, err = readDays(tx, time.Now().AddDate(0, 0, 1-keepDays).UTC().Format(time.DateOnly))
		return err
	})
	if err != nil {
		return 0, errors.Join(err, s.db.Close())
	}
	return applied, nil
}

// replay continues with the entries of the journal that the database lacks: they are pending again. Nothing
// is written to the database, so that a daemon can start on a full disk.
func (s *Store) replay(applied uint64) error {
	s.next = applied + 1
	paths, err := segments(s.o.Dir)
	if err != nil {
		return err
	}
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		last := uint64(0)
		err = readFrames(f, func(e Entry, body []byte) error {
			if e.Seq >= s.next {
				s.next = e.Seq + 1
				s.bytes += int64(len(body))
				s.pendLocked(item{entry: e, body: body})
				switch at := string(join(e.Tenant, e.Session)); {
				case e.Gone:
					delete(s.meters, at)
				case e.Period:
					s.meters[at] = Meter{e.Box, e.EndedAt}
				}
				last = e.Seq
			}
			return nil
		})
		f.Close() // only read
		if err != nil {
			return err
		}
		if last > 0 {
			s.journal.old = append(s.journal.old, segment{path, last})
		} else if err := os.Remove(path); err != nil {
			return err
		}
	}
	_ = s.journal.begin(s.next) // or Append begins it
	s.wakeUp()
	return nil
}

// countLocked adds what e used to the sums of its tenant. Budgets also count what could not be
// written down.
func (s *Store) countLocked(e *Entry) (k totalKey) {
	if e.Gone {
		return k
	}
	k = s.totalLocked(e)
	sum := s.totals[k]
	sum.Add(countersOf(e))
	s.totals[k] = sum
	day := s.dayLocked(e.EndedAt.UTC().Format(time.DateOnly))
	sum = day[k.tenant]
	sum.Add(countersOf(e))
	day[k.tenant] = sum
	return k
}

// pendLocked adds an item that is in the journal to those that wait to be stored.
func (s *Store) pendLocked(it item) {
	it.total = s.countLocked(&it.entry)
	s.pending = append(s.pending, it)
}

func (s *Store) wakeUp() {
	select {
	case s.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// Append adds an entry. Once it has returned nil, the entry survives the death of this process. An
// error other than ErrClosed is also reported.
func (s *Store) Append(e Entry) error {
	body, err := encode(&e)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.refuseLocked(&e, err)
	}
	if e.Key != "" {
		if known, err := s.isKnown(&e); err != nil {
			s.mu.Lock()
			defer s.mu.Unlock()
			return s.refuseLocked(&e, err)
		} else if known {
			return nil
		}
	}
	size := int64(len(body))
	if err := s.takeRoom(&e, size); err != nil {
		return err
	}
	s.writing.Lock()
	defer s.writing.Unlock()
	e.Seq = s.next
	err = s.journal.append(e.Seq, frame(e.Seq, body)) // fails if the store is closed
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.bytes -= size
		s.room.Broadcast()
		return s.refuseLocked(&e, fmt.Errorf("history: %w", err))
	}
	s.next++
	s.refused = nil
	s.pendLocked(item{entry: e, body: body})
	s.wakeUp()
	return nil
}

// takeRoom waits until an entry may wait to be stored, and counts its bytes.
func (s *Store) takeRoom(e *Entry, size int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.bytes > maxPending && s.failed == nil && !s.closed {
		s.room.Wait()
	}
	switch {
	case s.closed:
		return ErrClosed
	case s.bytes > maxPending:
		return s.refuseLocked(e, fmt.Errorf("history: %w", s.failed))
	}
	s.bytes += size
	return nil
}

// refuseLocked counts e, which cannot be written down, and returns err. It reports the first of
// several refusals.
func (s *Store) refuseLocked(e *Entry, err error) error {
	if s.closed {
		return ErrClosed
	}
	if !e.Period { // its caller repeats it
		s.countLocked(e)
	}
	if s.refused == nil {
		s.reportLocked(fmt.Errorf("%w: what runs until this works again is not in the history", err))
	}
	s.refused = err
	return err
}

// reportLocked calls Report without the lock; Close waits for that.
func (s *Store) reportLocked(err error) { s.reports.Go(func() { s.o.Report(err) }) }

// isKnown reports whether the end of a process has an entry.
func (s *Store) isKnown(e *Entry) (known bool, err error) {
	s.mu.Lock()
	pending := s.pendingLocked()
	s.mu.Unlock()
	for _, it := range pending { // first: what leaves them is in the database
		o := &it.entry
		if o.Key == e.Key && o.Box == e.Box && o.Session == e.Session && o.Tenant == e.Tenant {
			return true, nil
		}
	}
	err = s.view(func(tx *bbolt.Tx) error {
		known = tx.Bucket(processBucket).Get(processKey(e)) != nil
		return nil
	})
	return known, err
}

// pendingLocked returns the entries that may not be in the database yet.
func (s *Store) pendingLocked() []item { return slices.Concat(s.storing, s.pending) }

// run stores entries and forgets old ones until the store closes.
func (s *Store) run() {
	defer close(s.finished)
	sweep := time.NewTicker(sweepEvery)
	defer sweep.Stop()
	s.sweep()
	for {
		select {
		case <-s.stop.Done():
			return
		case <-sweep.C:
			s.sweep()
			continue
		case <-s.wake:
		}
		delay := batchDelay
		for {
			s.mu.Lock()
			full := s.bytes > maxPending/4 && s.failed == nil
			s.mu.Unlock()
			if !full {
				select {
				case <-s.stop.Done():
					return
				case <-time.After(delay):
				}
			}
			if s.flush() == nil {
				break
			}
			delay = retryDelay
		}
	}
}

func (s *Store) sweep() {
	now := time.Now()
	for more := true; more && s.stop.Err() == nil; {
		var err error
		if more, err = s.forgetOld(now.Add(-s.o.Keep), now.Add(-s.o.KeepUsage)); err != nil {
			s.o.Report(fmt.Errorf("forgetting old history: %w", err))
			return
		}
	}
}

// flush stores everything that is pending. Only one goroutine calls it at a time.
func (s *Store) flush() error {
	s.writing.Lock()
	if s.journal.size > segmentBytes && !s.journal.closed {
		_ = s.journal.begin(s.next) // on an error it stays in this file, which may grow
	}
	s.writing.Unlock()
	s.mu.Lock()
	s.storing, s.pending = s.pending, nil
	batch := s.storing
	s.mu.Unlock()
	if len(batch) == 0 {
		return nil
	}
	err := s.store(batch)
	s.mu.Lock()
	if err != nil {
		s.pending = slices.Concat(s.storing, s.pending)
		if s.failed == nil {
			s.reportLocked(fmt.Errorf("storing history (it will be retried): %w", err))
		}
	} else {
		for _, it := range batch {
			s.bytes -= int64(len(it.body))
		}
	}
	s.storing, s.failed = nil, err
	s.room.Broadcast()
	s.mu.Unlock()
	if err != nil {
		return err
	}
	s.writing.Lock()
	done := s.journal.drop(batch[len(batch)-1].entry.Seq)
	s.writing.Unlock()
	for _, path := range done {
		_ = os.Remove(path) // what stays is removed by the next opening
	}
	return nil
}

// Close stores pending entries and closes the store. Entries that cannot be stored stay in the journal. No
// call of Report is under way when it returns.
func (s *Store) Close() error {
	s.mu.Lock()
	first := !s.closed
	s.closed = true
	s.room.Broadcast()
	s.mu.Unlock()
	if !first {
		<-s.finished
		return nil
	}
	s.cancel()
	<-s.finished
	s.writing.Lock() // a caller that has taken room has written, or finds that the journal is closed
	var err error
	if s.journal.file != nil {
		err = s.journal.file.Close()
	}
	s.journal.closed = true
	s.writing.Unlock()
	err = errors.Join(err, s.flush())
	s.reports.Wait()
	return errors.Join(err, s.db.Close())
}
