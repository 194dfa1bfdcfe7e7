package cli

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
)

// copyProgress shows on a terminal how far a copy is that takes longer than a second.
type copyProgress struct {
	screen *os.File // nil: nobody looks
	begun  time.Time

	// The HTTP client reads a body in a goroutine of its own, which can outlive a
	// request that failed.
	mu    sync.Mutex
	shown time.Time // zero: there is no line on the screen
	files int
	bytes int64
}

// newCopyProgress shows nothing if content goes to stdout and that is a terminal.
func (a *App) newCopyProgress(contentToStdout bool) *copyProgress {
	p := &copyProgress{screen: asTerminal(a.Stderr), begun: time.Now()}
	if contentToStdout && asTerminal(a.Stdout) != nil {
		p.screen = nil
	}
	return p
}

// countedReader counts what is read of a file that is copied.
type countedReader struct {
	io.Reader
	n    int64 // under the mutex of p
	name string
	size int64 // -1: not known
	p    *copyProgress
}

func (p *copyProgress) reader(name string, size int64, r io.Reader) *countedReader {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.files++
	return &countedReader{Reader: r, name: name, size: size, p: p}
}

func (r *countedReader) Read(b []byte) (int, error) {
	n, err := r.Reader.Read(b)
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	r.n += int64(n)
	r.p.bytes += int64(n)
	r.p.showLocked(r)
	return n, err
}

func (r *countedReader) count() int64 {
	r.p.mu.Lock()
	defer r.p.mu.Unlock()
	return r.n
}

func (p *copyProgress) showLocked(r *countedReader) {
	now := time.Now()
	if p.screen == nil || now.Sub(p.begun) < progressDelay || now.Sub(p.shown) < progressPause {
		return
	}
	p.shown = now
	line := "copying " + printable(r.name) + ": " + engine.FormatSize(r.n)
	if r.size > 0 {
		line += fmt.Sprintf(" of %s, %d %%", engine.FormatSize(r.size), min(100*r.n/r.size, 100))
	}
	if p.files > 1 {
		line += fmt.Sprintf("; %d files, %s", p.files, engine.FormatSize(p.bytes))
	}
	// Back to the margin and erase the line: ECMA-48. The cut keeps it one line.
	width := int((&terminal{screen: p.screen}).size().Cols) - 1
	fmt.Fprintf(p.screen, "\r\x1b[K%.*s", width, line)
}

// clear takes the line off the screen.
func (p *copyProgress) clear() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.shown.IsZero() {
		fmt.Fprint(p.screen, "\r\x1b[K")
		p.shown = time.Time{}
	}
}
