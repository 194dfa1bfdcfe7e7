package gateway

import (
	"net/http"
	"sync"
	"time"
)

// Pauses between starts of a server that fails.
const (
	minPause = time.Second
	maxPause = time.Minute
	// calm is how long after a pause a failure counts as the first one again.
	calm = time.Minute
)

// backoff delays the starts of a server that fails: the pause after a failure doubles, and then one start is tried while
// others are refused. All clients of a tenant share it, in every mode.
type backoff struct {
	mu       sync.Mutex
	failures int      // in a row
	counted  int      // failures ever
	last     *Failure // nil: the server has started since
	retryAt  time.Time
	trying   *attempt // the one start after a failure; nil: none is in progress
}

// attempt is a start of a server. It ends once: the first call of fail, succeed or abandon counts.
type attempt struct {
	b       *backoff
	begun   time.Time
	counted int // failures that were counted before
	ended   bool
}

// startsOf returns the back-off of a server for a tenant.
func (g *Gateway) startsOf(s *Server, tenant string) *backoff {
	key := tenantServer{tenant, s.Name}
	g.mu.Lock()
	defer g.mu.Unlock()
	b := g.starts[key]
	if b == nil {
		b = &backoff{}
		g.starts[key] = b
	}
	return b
}

// begin begins a start, which the caller ends, or returns the last failure with the time until the next start.
func (b *backoff) begin() (*attempt, *Failure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.last != nil && (b.trying != nil || time.Until(b.retryAt) > 0) {
		return nil, b.refusalLocked()
	}
	a := &attempt{b: b, begun: time.Now(), counted: b.counted}
	if b.last != nil {
		b.trying = a
	}
	return a, nil
}

func (b *backoff) refusalLocked() *Failure {
	f := *b.last
	f.RetryAfter = max(1, b.pauseLocked())
	return &f
}

// pauseLocked is the rest of the pause, in whole seconds.
func (b *backoff) pauseLocked() int {
	return int((max(0, time.Until(b.retryAt)) + time.Second - 1) / time.Second)
}

// lost counts the end of a process that clients share. The end of one that had done its work is followed by a start at once.
func (b *backoff) lost(f *Failure) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.countLocked(f, time.Now())
}

func (b *backoff) countLocked(f *Failure, begun time.Time) {
	if begun.Sub(b.retryAt) > calm {
		b.failures = 0
	}
	pause := time.Duration(0)
	if b.failures > 0 || f.Phase != PhaseLost {
		pause = min(minPause<<min(b.failures, 6), maxPause)
	}
	b.failures++
	b.counted++
	b.last, b.retryAt = f, time.Now().Add(pause)
}

// overtaken returns the failure that was counted since a began; nil: there is none.
func (a *attempt) overtaken() *Failure {
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	if a.b.counted == a.counted || a.b.last == nil {
		return nil
	}
	return a.b.refusalLocked()
}

// fail ends a, and returns f with the time until the next start. Of starts that were in progress at once, one failure counts. What
// the API refuses to this caller says nothing about the server.
func (a *attempt) fail(f *Failure) *Failure {
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	if !a.endLocked() {
		return f
	}
	if f.Problem != nil {
		switch f.Problem.Status {
		case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests:
			return f
		}
	}
	if a.b.counted == a.counted {
		a.b.countLocked(f, a.begun)
	}
	said := *f
	said.RetryAfter = max(f.RetryAfter, a.b.pauseLocked())
	return &said
}

// succeed ends a: the server works.
func (a *attempt) succeed() {
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	if a.endLocked() {
		a.b.last = nil
	}
}

// abandon ends a without an outcome, for example when its client has left.
func (a *attempt) abandon() {
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	a.endLocked()
}

// endLocked reports whether a was in progress.
func (a *attempt) endLocked() bool {
	if a.ended {
		return false
	}
	a.ended = true
	if a.b.trying == a {
		a.b.trying = nil
	}
	return true
}
