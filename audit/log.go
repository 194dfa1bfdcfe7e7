package audit

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/boxd/boxd/internal/diskroom"
)

// Options of a [Log].
type Options struct {
	MaxBytes int64 // size at which a file is rotated; 0: DefaultMaxBytes
	Keep     int   // rotated files that are kept; 0: DefaultKeep
	Sync     bool  // sync each entry to disk before Append returns
}

// Defaults of [Options], and the least that makes sense for MaxBytes.
const (
	DefaultMaxBytes = 64 << 20
	DefaultKeep     = 10
	MinBytes        = 4 << 10
)

// ErrClosed: the log was closed.
var ErrClosed = errors.New("audit log is closed")

// Log is an open log. It is safe for concurrent use.
type Log struct {
	path    string
	options Options

	mu   sync.Mutex
	file logFile       // nil: a rotation failed half-way; the next Append goes on with it
	size int64         // of file up to the end of the last line
	disk diskroom.Room // of file, its reserve included
	// unready: the disk was full when the log was opened, so that the end of its chain
	// could not be made ready; the next Append does that.
	unready bool
	number  int // of file
	oldest  int // lowest number that is kept; only grows
	head    Head
	dirty   bool  // there may be part of a line behind size
	err     error // of the last Append
	closed  bool
}

// logFile is an *os.File; tests put one in its place that fails.
type logFile interface {
	Write(p []byte) (int, error)
	Truncate(size int64) error
	Sync() error
	Close() error
}

// Open opens or creates the log at path, with mode 0600, and goes on with its chain.
// What a crash has left of a line is recorded as torn. The file is locked: a second
// Open fails as long as the log is open.
func Open(path string, o Options) (*Log, error) {
	o.MaxBytes, o.Keep = cmp.Or(o.MaxBytes, DefaultMaxBytes), cmp.Or(o.Keep, DefaultKeep)
	if o.MaxBytes < MinBytes || o.Keep < 1 {
		return nil, fmt.Errorf("audit log %q: files of %d bytes, %d kept: must be at least %d and 1", path, o.MaxBytes, o.Keep, MinBytes)
	}
	l := &Log{path: path, options: o, head: Head{Hash: noHash}}
	err := l.open()
	if diskroom.IsFull(err) && l.file != nil { // the caller can end sessions and so make room
		l.unready, l.err = true, err
		return l, nil
	}
	if err != nil {
		if l.file != nil {
			l.file.Close()
		}
		return nil, err
	}
	return l, nil
}

// open opens the file, and makes it ready.
func (l *Log) open() error {
	f, err := openLocked(l.path, 0)
	if err == nil {
		l.file = f
		err = l.resume(f)
	}
	if err == nil {
		err = l.reserveLocked(0)
	}
	if err != nil {
		return l.advise(fmt.Errorf("audit log %q: %w", l.path, err))
	}
	return nil
}

// Append writes e. After an error the entry counts as not written, and the next
// Append tries anew: there may be room on the disk again.
func (l *Log) Append(e Entry) error {
	if e.Time.IsZero() {
		e.Time = time.Now()
	}
	e.Time = e.Time.UTC()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	err := l.advise(l.appendLocked(e))
	if !errors.Is(err, ErrEntry) { // which says nothing about the disk
		l.err = err
	}
	return err
}

// appendLocked writes e, in a new file if this one is full.
func (l *Log) appendLocked(e Entry) error {
	if f, ok := l.file.(*os.File); ok && l.unready {
		if err := l.resume(f); err != nil {
			return fmt.Errorf("audit log %q: %w", l.path, err)
		}
		l.unready = false
	}
	line, hash, err := encode(l.next(e))
	if err != nil {
		return err
	}
	full := l.size > 0 && l.size+int64(len(line)) > l.options.MaxBytes
	if err := l.reserveLocked(int64(len(line))); err != nil {
		if !e.Ends {
			return fmt.Errorf("audit log %q: %w", l.path, err)
		}
		full = false // this file has the reserve
	}
	if l.file == nil || full {
		if err := l.rotateLocked(); err != nil {
			return fmt.Errorf("audit log %q: rotating: %w", l.path, err)
		}
		// The anchor took the number, so the line is another one now.
		if line, hash, err = encode(l.next(e)); err != nil {
			return err
		}
	}
	if err := l.writeLocked(line, Head{Seq: l.head.Seq + 1, Hash: hash}); err != nil {
		return fmt.Errorf("audit log %q: %w", l.path, err)
	}
	return nil
}

// next is the record of e behind the head.
func (l *Log) next(e Entry) record {
	return record{Seq: l.head.Seq + 1, Entry: e, Prev: l.head.Hash}
}

// writeLocked writes line in one go and makes it the head. Nothing of a line that
// could not be written whole is left in the file.
func (l *Log) writeLocked(line []byte, head Head) error {
	if err := l.takeBackLocked(); err != nil {
		return err
	}
	_, err := l.file.Write(line)
	if err == nil && l.options.Sync {
		err = l.file.Sync()
	}
	if err != nil {
		l.dirty = l.file.Truncate(l.size) != nil
		l.disk.Forget() // what was behind the end is given up
		return err
	}
	l.size += int64(len(line))
	l.head = head
	return nil
}

// takeBackLocked cuts off what was written of a line when the disk was full.
func (l *Log) takeBackLocked() error {
	if !l.dirty {
		return nil
	}
	if err := l.file.Truncate(l.size); err != nil {
		return fmt.Errorf("taking back part of a line: %w", err)
	}
	l.dirty = false
	return nil
}

// writeRecordLocked writes a line of the log's own, with before in front of it.
func (l *Log) writeRecordLocked(before []byte, r record) error {
	r.Seq, r.Prev, r.Time = l.head.Seq+1, l.head.Hash, time.Now().UTC()
	line, hash, err := encode(r)
	if err != nil {
		return err
	}
	return l.writeLocked(append(before, line...), Head{Seq: r.Seq, Hash: hash})
}

// Head is the last line that was written. Kept elsewhere it proves later that
// nothing before it has changed; see [Verify].
func (l *Log) Head() Head {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head
}

// Healthy is nil if entries can be written. After an Append that could not be written
// it tries, with an entry that says so, so that whoever refuses everything while the
// log is not healthy finds out when it is again.
func (l *Log) Healthy() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	if l.err != nil {
		l.err = l.advise(l.appendLocked(Entry{Time: time.Now().UTC(), Action: "audit-resumed", Decision: Done, Reason: l.err.Error()}))
	}
	return l.err
}

// Sync writes to disk what the kernel still holds.
func (l *Log) Sync() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || l.file == nil {
		return nil
	}
	return l.file.Sync()
}

// Close syncs and closes the file. Closing a closed log is no error.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	if l.file == nil {
		return nil
	}
	return errors.Join(l.file.Sync(), l.file.Close())
}

var _ logFile = (*os.File)(nil)
