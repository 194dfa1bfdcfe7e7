package relay

import (
	"context"
	"syscall"
	"time"
)

// Output is an output stream, whose latest part is kept in a ring buffer. An offset
// counts bytes from the start of the process.
type Output interface {
	// Bounds returns the offset of the oldest byte kept, and the offset after the newest.
	Bounds() (oldest, end int64)
	// ReadAt reads into p, starting at off. It waits until there is at least one byte,
	// the stream has ended (io.EOF), or ctx ends. at is the offset of the first byte
	// read; it is above off if the bytes in between are no longer kept.
	ReadAt(ctx context.Context, p []byte, off int64) (n int, at int64, err error)
	// Release allows the process to overwrite the bytes below off.
	Release(off int64)
}

// Mark is the time at which the byte at Offset arrived.
type Mark struct {
	Offset int64
	Time   time.Time
}

// Input is the input stream. An offset counts bytes from the start of the process.
type Input interface {
	// Write sends p, whose first byte has the offset off, and waits until all of it is
	// accepted, or ctx ends. Bytes below Accepted are skipped. Once Write has returned,
	// Accepted no longer advances on its account. syscall.EPIPE and fs.ErrClosed: the
	// stream accepts nothing more.
	Write(ctx context.Context, off int64, p []byte) error
	// Accepted returns the offset after the last accepted byte.
	Accepted() int64
	// Close ends the stream after the accepted bytes.
	Close(ctx context.Context) error
}

// Exit is how a process ended.
type Exit struct {
	// Code is the exit status, 0 to 255, or -1 if there is none.
	Code int
	// Signal is the signal that ended the process, or 0.
	Signal int
	// Verdict says why the process ended, and Limit which limit it ran into, if any.
	// Texts above 255 bytes are cut.
	Verdict string
	Limit   string
}

// VerdictLost is the verdict of a process whose box was lost, so that nothing more can be
// known of it. There is no exit status then.
const VerdictLost = "box-lost"

// Source is a process as the relay sees it. Its functions must return in bounded time,
// and may be called from several goroutines at once.
type Source struct {
	// Stdin is nil if the process has none. Stdout is never nil. Stderr is nil if it is
	// part of Stdout.
	Stdin          Input
	Stdout, Stderr Output
	// Times returns when the bytes of an output arrived, as marks in ascending order,
	// each for the bytes up to the next one. It is nil if the times are not known.
	Times func(Stream) []Mark
	// Hold keeps the outputs of a process that ends readable until the hub calls release. It
	// may be nil.
	Hold func() (release func())
	// TTY says that the process has a terminal.
	TTY bool
	// Done is closed when the process has ended and all of its output can be read, or
	// when its box is lost. Exit returns how it ended, and is called after Done only.
	Done <-chan struct{}
	Exit func() Exit
	// Signal and Resize act on the process. They are nil if that is not possible.
	Signal func(syscall.Signal) error
	Resize func(rows, cols uint16) error
	// Touch, if not nil, is called when there was traffic, at most once a second for
	// each connection.
	Touch func()
}
