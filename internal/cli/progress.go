package cli

import (
	"fmt"
	"strings"
	"sync"
	"time"
)

const (
	// progressDelay is how long a task runs before its bar is shown.
	progressDelay = time.Second
	// progressPause is the time between two updates of the bar.
	progressPause = 100 * time.Millisecond
	progressCells = 24

	eraseLine = "\x1b[K" // the rest of it: ECMA-48
)

// progress shows a bar on stderr for a task that takes longer than progressDelay, if stderr is a
// terminal. The caller calls end.
type progress struct {
	out    screen
	what   string
	format func(int64) string

	mu          sync.Mutex
	done, total int64
	drawn       bool

	quit   chan struct{}
	closed chan struct{}
}

// newProgress begins a task of total units, such as files or bytes; 0 means an unknown
// number. format formats a number of units.
func (a *App) newProgress(what string, total int64, format func(int64) string) *progress {
	p := &progress{out: a.screen(a.Stderr), what: what, total: total, format: format, quit: make(chan struct{}), closed: make(chan struct{})}
	if !p.out.terminal {
		close(p.closed)
		return p
	}
	go p.run(time.After(progressDelay))
	return p
}

func (p *progress) run(next <-chan time.Time) {
	defer close(p.closed)
	for {
		select {
		case <-next:
			p.draw()
			next = time.After(progressPause)
		case <-p.quit:
			p.pause(func() {})
			return
		}
	}
}

// expect sets the number of units, once it is known.
func (p *progress) expect(total int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.total = total
}

// add counts n units as done.
func (p *progress) add(n int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done += n
}

// end removes the bar from the screen.
func (p *progress) end() {
	close(p.quit)
	<-p.closed
}

// pause removes the bar while say writes a line.
func (p *progress) pause(say func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.drawn {
		fmt.Fprint(p.out, "\r"+eraseLine)
	}
	p.drawn = false
	say()
}

func (p *progress) draw() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drawn = true
	fmt.Fprint(p.out, "\r"+p.lineLocked()+eraseLine)
}

func (p *progress) lineLocked() string {
	if p.total <= 0 {
		return fmt.Sprintf("%s: %s", p.what, p.format(p.done))
	}
	done := min(p.done, p.total)
	full := int(done * progressCells / p.total)
	return fmt.Sprintf("%s [%s%s] %s of %s", p.what, p.out.paint(strings.Repeat("#", full), green), strings.Repeat("-", progressCells-full), p.format(done), p.format(p.total))
}

// plainCount formats a number without a unit.
func plainCount(n int64) string { return fmt.Sprint(n) }
