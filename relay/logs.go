package relay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"
)

// LogOptions select a part of an output stream. The zero value selects all of stdout that
// is kept now.
type LogOptions struct {
	Stream Stream // zero means Stdout
	// Offset is where to start; a negative one counts from the end.
	Offset int64
	// Since leaves out output that arrived earlier; zero leaves out nothing.
	Since time.Time
	// Tail leaves out all present output but the last so many lines; nil leaves out
	// nothing.
	Tail *int64
	// Timestamps writes the time of its arrival in front of each line.
	Timestamps bool
	// Follow waits for further output until the stream ends.
	Follow bool
	// Limit is the maximum number of bytes to write; 0 means no limit.
	Limit int64
	// Start, if not nil, is called before the first write, with the offset of the first
	// byte and the number of bytes between Offset and it that are no longer kept.
	Start func(first, gone int64)
}

// GapError reports that the process overwrote bytes before they could be written.
type GapError struct{ Gap }

func (e *GapError) Error() string {
	return fmt.Sprintf("%v: bytes %d to %d are gone: the reader was too slow", e.Stream, e.From, e.To)
}

// Logs writes a part of an output stream to w as plain bytes, and flushes w if it is an
// http.Flusher. Without Follow it ignores output that arrives after the call. It releases
// nothing, and does not count as traffic.
//
// Errors: ErrNoStream, ErrRange, ErrClosed, *GapError, and those of ctx and w.
func (h *Hub) Logs(ctx context.Context, w io.Writer, o LogOptions) error {
	out := h.src.Stdout
	if o.Stream == Stderr {
		out = h.src.Stderr
	}
	if out == nil || o.Stream > Stderr {
		return ErrNoStream
	}
	if ref := h.addUser(0, false); ref != nil {
		return fmt.Errorf("%w: %s", ErrClosed, ref.text)
	}
	defer h.removeUser(0)
	defer h.src.Hold()()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(h.ctx, func() { cancel(ErrClosed) })()

	oldest, end := out.Bounds()
	first := o.Offset
	if first < 0 {
		first = max(end+first, 0)
	}
	if first > end {
		return fmt.Errorf("%w: %v ends at %d, which is below %d", ErrRange, max(o.Stream, Stdout), end, first)
	}
	l := logWriter{hub: h, out: out, stream: max(o.Stream, Stdout), w: w, limit: o.Limit}
	if (o.Timestamps || !o.Since.IsZero()) && h.src.Times == nil {
		return fmt.Errorf("%w: when the output arrived is not known", errors.ErrUnsupported)
	}
	if o.Timestamps {
		l.stamps = &stamper{times: func() []Mark { return h.src.Times(l.stream) }}
	}
	if !o.Since.IsZero() {
		first = max(first, offsetAt(h.src.Times(l.stream), o.Since, end))
	}
	if o.Tail != nil {
		at, err := lastLines(ctx, out, max(first, oldest), end, *o.Tail)
		if err != nil {
			return err
		}
		first = max(first, at)
	}
	l.off = max(first, oldest)
	if o.Start != nil {
		o.Start(l.off, l.off-first)
	}
	if o.Follow {
		return l.follow(ctx)
	}
	return l.upTo(ctx, end)
}

// logWriter writes a stream from off on.
type logWriter struct {
	hub    *Hub
	out    Output
	stream Stream
	w      io.Writer
	off    int64
	limit  int64 // 0: none
	stamps *stamper
	wrote  int64
	buf    []byte
}

var errLimit = errors.New("limit reached")

// follow writes until the process has ended.
func (l *logWriter) follow(ctx context.Context) error {
	live, stop := context.WithCancel(ctx)
	var watcher sync.WaitGroup
	watcher.Go(func() {
		select {
		case <-l.hub.src.Done:
		case <-l.hub.removed:
		case <-live.Done():
		}
		stop()
	})
	defer watcher.Wait()
	defer stop()
	var err error
	for err == nil {
		err = l.once(live, MaxData)
	}
	if errors.Is(err, io.EOF) {
		// A process that ends closes the stream before its end is recorded, and a client that
		// is told to wait for the end asks for the exit code next.
		<-live.Done()
	}
	if live.Err() != nil && ctx.Err() == nil && errors.Is(err, context.Canceled) {
		// The process has ended, so no more output follows.
		_, end := l.out.Bounds()
		return l.upTo(ctx, end)
	}
	return finished(ctx, err)
}

// upTo writes the bytes below end.
func (l *logWriter) upTo(ctx context.Context, end int64) error {
	for l.off < end {
		if err := l.once(ctx, end-l.off); err != nil {
			return finished(ctx, err)
		}
	}
	return nil
}

func finished(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, io.EOF), errors.Is(err, errLimit):
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	return err
}

// once reads once, and writes the result: at most most bytes.
func (l *logWriter) once(ctx context.Context, most int64) error {
	if l.limit > 0 {
		most = min(most, l.limit-l.wrote)
	}
	if most <= 0 {
		return errLimit
	}
	if l.buf == nil {
		l.buf = make([]byte, 64<<10)
	}
	n, at, err := l.out.ReadAt(ctx, l.buf[:min(most, int64(len(l.buf)))], l.off)
	if n == 0 && err != nil {
		return err
	}
	if n <= 0 || n > len(l.buf) || at < l.off {
		return fmt.Errorf("reading %s from offset %d: the engine returned %d bytes at offset %d, of at most %d", l.stream, l.off, n, at, len(l.buf))
	}
	if at > l.off {
		return &GapError{Gap{l.stream, l.off, at}}
	}
	text := l.buf[:n]
	if l.stamps != nil {
		text = l.stamps.stamp(text, l.off)
	}
	l.off, l.wrote = l.off+int64(n), l.wrote+int64(n)
	if werr := l.write(text); werr != nil {
		return werr
	}
	return err
}

// write writes p and flushes it. If w belongs to an HTTP request, the reader has the time
// Stall to accept p.
func (l *logWriter) write(p []byte) error {
	if rw, ok := l.w.(http.ResponseWriter); ok {
		http.NewResponseController(rw).SetWriteDeadline(time.Now().Add(l.hub.o.Stall))
	}
	if _, err := l.w.Write(p); err != nil {
		return err
	}
	if f, ok := l.w.(http.Flusher); ok {
		f.Flush()
	}
	return nil
}
