package attest

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// The longest that one measurement may take, and the removal of what it created.
const (
	measureTime = 10 * time.Second
	removeTime  = 10 * time.Second
)

// unmeasuredAge is how long an unmeasured report stays valid.
const unmeasuredAge = 5 * time.Second

// maxKept bounds the reports that are kept; a server needs one or two.
const maxKept = 16

// Prober measures on demand. It is safe for concurrent use.
type Prober struct {
	o      Options
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	last    map[Places]Report
	running chan struct{} // closed when the current measurement is done; nil if there is none
	closed  bool
}

// New returns a prober, which does nothing until it is asked for a report.
func New(o Options) *Prober {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	p := &Prober{o: o, last: make(map[Places]Report)}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	return p
}

// Report returns a report that is at most maxAge old, and measures if there is none. Concurrent
// callers share one measurement, which continues if ctx ends. Checks that could not be measured
// fail.
func (p *Prober) Report(ctx context.Context, maxAge time.Duration, where Places) Report {
	asked := time.Now()
	for {
		r, wait := p.begin(asked, maxAge, where)
		if wait == nil {
			return r
		}
		select {
		case <-wait:
		case <-ctx.Done():
			return late(Unmeasured("not measured: nobody waited for it"))
		}
	}
}

// begin returns a report, or else a channel that is closed at the end of the current measurement,
// which may be of other places. If there is none, begin starts one.
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
		return Unmeasured("not measured: the server is shutting down"), nil
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

// Close aborts the current measurement and waits until its box is gone. Later reports are
// unmeasured.
func (p *Prober) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.wg.Wait()
}

// late turns r into the report of a measurement that did not end in time, which counts as
// unmeasured.
func late(r Report) Report {
	failed := r.Failed()
	if len(failed) > 0 {
		r.Late, r.unmeasured = failed[0]+": "+r.Checks[failed[0]].Reason, true
	}
	return r
}
