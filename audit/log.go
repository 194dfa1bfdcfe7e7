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
	Keep     int   // number of rotated files to keep; 0: DefaultKeep
	Sync     bool  // sync each entry to disk before Append returns
}

// Defaults of [Options], and the minimum of MaxBytes.
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
	file logFile       // nil: a rotation failed half-way, which the next Append completes
	size int64         // of file, up to the end of the last line
	disk diskroom.Room // of file, including its reserve
	// unready: the disk was full when the log was opened, so the end of its chain is not
	// prepared yet; the next Append does that.
	unready bool
	number  int // of file
	oldest  int // lowest number that is kept; only grows
	head    Head
	dirty   bool  // a partial line may follow size
	err     error // of the last Append
	closed  bool
}

// logFile is an *os.File; tests replace it by one that fails.
type logFile interface {
	Write(p []byte) (int, error)
	Truncate(size int64) error
	Sync() error
	Close() error
}

// Open opens or creates the log at path, with mode 0600, and continues its chain. It
// records a partial line that a crash has left as torn. It locks the file: a second Open
// fails while the log is open.
func Open(path string, o Options) (*Log, error) {
	o.MaxBytes, o.Keep = cmp.Or(o.MaxBytes, DefaultMaxBytes), cmp.Or(o.Keep, DefaultKeep)
	if o.MaxBytes < MinBytes || o.Keep < 1 {
		return nil, fmt.Errorf("audit log %q: files of %d bytes, %d kept: must be at least %d and 1", path, o.MaxBytes, o.Keep, MinBytes)
	}
	l := &Log{path: path, options: o, head: Head{Hash: noHash}}
	err := l.open()
	if diskroom.IsFull(err) && l.file != nil { // the caller can end sessions, which makes room
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

// open opens and prepares the file.
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

// Append writes e. If it fails, the entry counts as not written, and the next Append tries
// again: the disk may have space by then.
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
	if !errors.Is(err, ErrEntry) { // a bad entry says nothing about the log
		l.err = err
	}
	return err
}

// appendLocked writes e, to a new file if the current one is full.
func (l *Log) appendLocked(e Entry) error {
	if f, ok := l.file.(*os.File); ok && l.unready {
		if err := l.resume(f); err != nil {
			return fmt.Errorf("audit log %q: %w", l.path, err)
		}
		l.unready = false
	}
	line, hash, err := encode(l.nextRecord(e))
	if err != nil {
		return err
	}
	full := l.size > 0 && l.size+int64(len(line)) > l.options.MaxBytes
	if err := l.reserveLocked(int64(len(line))); err != nil {
		if !e.Ends {
			return fmt.Errorf("audit log %q: %w", l.path, err)
		}
		full = false // only this file has the reserve
	}
	if l.file == nil || full {
		if err := l.rotateLocked(); err != nil {
			return fmt.Errorf("audit log %q: rotating: %w", l.path, err)
		}
		// The anchor has taken the sequence number, so the line must change.
		if line, hash, err = encode(l.nextRecord(e)); err != nil {
			return err
		}
	}
	if err := l.writeLocked(line, Head{Seq: l.head.Seq + 1, Hash: hash}); err != nil {
		return fmt.Errorf("audit log %q: %w", l.path, err)
	}
	return nil
}

// nextRecord returns the record of e that follows the head.
func (l *Log) nextRecord(e Entry) record {
	return record{Seq: l.head.Seq + 1, Entry: e, Prev: l.head.Hash}
}

// writeLocked writes line in one call and makes it the head. It removes a line that was
// written only in part.
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
		l.disk.Forget() // Truncate has freed what followed the end
		return err
	}
	l.size += int64(len(line))
	l.head = head
	return nil
}

// takeBackLocked cuts off a partial line from when the disk was full.
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

// writeRecordLocked writes a line of the log's own, preceded by the bytes before.
func (l *Log) writeRecordLocked(before []byte, r record) error {
	r.Seq, r.Prev, r.Time = l.head.Seq+1, l.head.Hash, time.Now().UTC()
	line, hash, err := encode(r)
	if err != nil {
		return err
	}
	return l.writeLocked(append(before, line...), Head{Seq: r.Seq, Hash: hash})
}

// Head returns the last line that was written. Kept elsewhere, it proves later that nothing
// up to that line has changed; see [Verify].
func (l *Log) Head() Head {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.head
}

// Healthy returns nil if entries can be written. After a failed Append, it tries to write
// an entry that says so. So a caller that refuses everything while the log is unhealthy
// learns when that is over.
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

// Sync writes to disk what the kernel still buffers.
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
