package relay

import (
	"context"
	"syscall"
	"time"
)

// Output is one output stream, of which the last part is kept in a ring. Offsets
// count bytes from the start of the process and only grow.
type Output interface {
	// Bounds are the offset of the oldest byte that is kept and that behind the
	// newest.
	Bounds() (oldest, end int64)
	// ReadAt reads from off on, waiting until there is at least one byte, the stream
	// has ended (io.EOF), or ctx ends. at is the offset of the first byte read: it
	// is above off if bytes in between are gone.
	ReadAt(ctx context.Context, p []byte, off int64) (n int, at int64, err error)
	// Release says that bytes below off need not be kept for anybody.
	Release(off int64)
}

// Mark says when the byte at Offset came.
type Mark struct {
	Offset int64
	Time   time.Time
}

// Input is the input stream. Offsets count bytes from the start of the process.
type Input interface {
	// Write hands over p, whose first byte has offset off, and waits until all of it
	// is the process's, or ctx ends. Bytes below Accepted are skipped. Once it has
	// returned, Accepted no longer grows on its account. syscall.EPIPE and
	// fs.ErrClosed: nothing is taken any more.
	Write(ctx context.Context, off int64, p []byte) error
	// Accepted is the offset behind the last byte that was taken.
	Accepted() int64
	// Close ends the stream behind what was accepted.
	Close(ctx context.Context) error
}

// Exit is how a process ended.
type Exit struct {
	// Code is its exit code, 0 to 255, or -1 if there is none.
	Code int
	// Signal is what ended it, or 0.
	Signal int
	// Verdict is why it ended, up to 255 bytes; Limit is the limit that it ran
	// into, if it is about one, up to 255 bytes. Longer ones are cut.
	Verdict string
	Limit   string
}

// VerdictLost is the verdict of a process of which nothing more can be known. It
// comes without a code.
const VerdictLost = "box-lost"

// Source is a process as the relay sees it. Functions that it calls must return in
// bounded time; they are called by many goroutines at once.
type Source struct {
	// Stdin is nil if the process has none; Stderr is nil if it is part of Stdout,
	// which is never nil.
	Stdin          Input
	Stdout, Stderr Output
	// Times says when the bytes of an output came: marks with growing offsets and times,
	// each for the bytes up to the next. Nil: nobody knows.
	Times func(Stream) []Mark
	// Hold keeps the outputs of a process that ends readable until the hub calls release. It
	// may be nil.
	Hold func() (release func())
	// TTY says that the process has a terminal.
	TTY bool
	// Done is closed when the process has ended and all of its output is in the
	// outputs, or it is lost. Exit is how it ended; it is called after Done.
	Done <-chan struct{}
	Exit func() Exit
	// Signal and Resize act on the process; nil means that it cannot be done.
	Signal func(syscall.Signal) error
	Resize func(rows, cols uint16) error
	// Touch is told, at most once a second and connection, that there was traffic.
	// It may be nil.
	Touch func()
}
