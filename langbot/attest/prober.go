package attest

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Bounds of one measurement: what it takes at most, and to take it apart again.
const (
	measureTime = 10 * time.Second
	removeTime  = 10 * time.Second
)

// unmeasuredAge is how long a report counts that could not be measured.
const unmeasuredAge = 5 * time.Second

// maxKept is how many reports are kept: one server has one or two.
const maxKept = 16

// Prober measures when it is asked. It is safe for concurrent use.
type Prober struct {
	o      Options
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	last    map[Places]Report
	running chan struct{} // closed when the measurement under way is done; nil if none is
	closed  bool
}

// New returns a prober. It does nothing until it is asked.
func New(o Options) *Prober {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Prober{o: o, last: make(map[Places]Report)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Report is ReportOf workspaces and skills in volumes.
func (p *Prober) Report(ctx context.Context, maxAge time.Duration) Report {
	return p.ReportOf(ctx, maxAge, Places{})
}

// ReportOf returns a report that is at most maxAge old, and measures if there is none.
// Everybody who asks meanwhile gets the result of that one measurement, which goes on
// if ctx ends. It never fails: what could not be measured is false.
func (p *Prober) ReportOf(ctx context.Context, maxAge time.Duration, where Places) Report {
	asked := time.Now()
	for {
		r, wait := p.begin(asked, maxAge, where)
		if wait == nil {
			return r
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return late(nothing("not measured: nobody waited for it"))
		}
	}
}

// begin returns a report, or what to wait for: the end of a measurement, maybe of other
// workspaces, which it starts if there is none.
func (p *Prober) begin(asked time.Time, maxAge time.Duration, where Places) (Report, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	last, ok := p.last[where]
	if last.unmeasured {
		maxAge = min(maxAge, unmeasuredAge)
	}
	if ok && (time.Since(last.At) <= maxAge || !last.At.Before(asked)) {
		return last, nil
	}
	if p.closed {
		return nothing("not measured: the server is shutting down"), nil
	}
	if p.running == nil {
		done := make(chan struct{})
		p.running = done
		p.wg.Go(func() { p.measure(done, where) })
	}
	return Report{}, p.running
}

func (p *Prober) measure(done chan struct{}, where Places) {
	ctx, cancel := context.WithTimeout(p.ctx, measureTime)
	defer cancel()
	r := p.run(ctx, where)
	r.At = time.Now()
	p.mu.Lock()
	if len(p.last) >= maxKept {
		clear(p.last)
	}
	p.last[where], p.running = r, nil
	p.mu.Unlock()
	close(done)
}

// Close ends a measurement under way and waits until its box is gone. Later reports
// measure nothing.
func (p *Prober) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.wg.Wait()
}

// late is r of a measurement that did not come to its end in time. It counts as unmeasured.
func late(r Report) Report {
	failed := r.Failed()
	if len(failed) > 0 {
		r.Late, r.unmeasured = failed[0]+": "+r.Checks[failed[0]].Reason, true
	}
	return r
}

// nothing is a report in which all is false.
func nothing(why string) Report {
	r := Report{Checks: make(map[string]Check), At: time.Now(), unmeasured: true}
	for _, name := range Names {
		r.Checks[name] = Check{Reason: why}
	}
	return r
}
