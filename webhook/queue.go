package webhook

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"sync"
	"time"
)

const (
	// parallel is how many requests to one receiver are under way at once.
	parallel = 4
	// firstPause is the time before the second attempt of a message; it is doubled for each further
	// one. Each pause is varied by a fifth, so that messages of one moment do not stay together.
	firstPause = time.Second
	lastPause  = 15 * time.Minute
	// firstProbe and lastProbe bound the pauses between attempts while none succeeds.
	firstProbe = 500 * time.Millisecond
	lastProbe  = time.Minute
	// longestWait bounds what a receiver may ask for with Retry-After.
	longestWait = time.Hour
	// sweepEvery is how often messages that are too old are looked for.
	sweepEvery = time.Minute
	// removePause is the time before another attempt to remove messages from the database.
	removePause = 5 * time.Second
	// logEvery is the time between two lines about messages that were dropped.
	logEvery = time.Minute
)

// queue holds the messages to one receiver, and delivers them.
type queue struct {
	s       *Sender
	r       Receiver
	client  *http.Client
	remove  func(keys []string) error
	work    sync.WaitGroup // requests under way
	done    chan struct{}  // closed when run has returned
	wake    chan struct{}
	stopped chan struct{}

	mu      sync.Mutex
	list    []*message // oldest first
	bytes   int64
	held    map[string]int64  // bytes by tenant
	turns   uint64            // attempts that have begun
	turn    map[string]uint64 // of the last attempt by tenant; kept, as a tenant without messages is not to come first when it has one again
	busy    int
	next    time.Time // before this no attempt begins
	streak  int       // attempts that have failed since the last success
	gone    []string  // keys to be removed from the database
	goneAt  time.Time // not before this
	err     string
	count   struct{ delivered, failed, dropped uint64 }
	loggedN uint64    // what the log knows of count.dropped
	logged  time.Time // when it was told
}

func newQueue(s *Sender, r Receiver) *queue {
	return &queue{s: s, r: r, client: s.client(), held: map[string]int64{}, turn: map[string]uint64{}, done: make(chan struct{}), wake: make(chan struct{}, 1), stopped: make(chan struct{})}
}

// begin delivers what was added, and what will be.
func (q *queue) begin(remove func(keys []string) error) {
	q.remove = remove
	go q.run()
}

// stop lets no further attempt begin.
func (q *queue) stop() { close(q.stopped) }

// wait returns when all attempts have ended and run has returned. Only a queue that was begun runs.
func (q *queue) wait() {
	if q.remove != nil {
		<-q.done
	}
	q.client.CloseIdleConnections()
}

func (q *queue) state() State {
	q.mu.Lock()
	defer q.mu.Unlock()
	st := State{Name: q.r.Name, Pending: len(q.list), Bytes: q.bytes, Delivered: q.count.delivered, Failed: q.count.failed, Dropped: q.count.dropped, Error: q.err}
	if u, err := url.Parse(q.r.URL); err == nil {
		st.Host = u.Host
	}
	if len(q.list) > 0 {
		st.Oldest = q.list[0].at
	}
	return st
}

// add adds a message that is in the database. If there are too many, it drops the oldest ones of the
// tenant that has the most bytes waiting, so that no tenant displaces the messages of another.
func (q *queue) add(m *message) {
	q.mu.Lock()
	q.list = append(q.list, m)
	q.bytes += int64(len(m.body))
	q.held[m.tenant] += int64(len(m.body))
	for q.bytes > q.r.QueueSize && len(q.list) > 1 {
		oldest := q.list[0]
		for _, other := range q.list {
			if q.held[other.tenant] > q.held[oldest.tenant] {
				oldest = other
			}
		}
		q.dropLocked(oldest)
	}
	q.mu.Unlock()
	q.wakeUp()
}

func (q *queue) wakeUp() {
	select {
	case q.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// dropLocked gives a message up.
func (q *queue) dropLocked(m *message) {
	q.takeOutLocked(m)
	q.count.dropped++
}

// takeOutLocked takes a message out of the queue, and reports whether it was there.
func (q *queue) takeOutLocked(m *message) bool {
	i := slices.Index(q.list, m)
	if i < 0 {
		return false // it was dropped meanwhile
	}
	q.list = slices.Delete(q.list, i, i+1)
	q.bytes -= int64(len(m.body))
	if q.held[m.tenant] -= int64(len(m.body)); q.held[m.tenant] == 0 {
		delete(q.held, m.tenant)
	}
	q.gone = append(q.gone, m.key)
	return true
}

// run begins attempts, and removes messages that need none any more, until the sender closes.
func (q *queue) run() {
	defer close(q.done)
	for !q.isStopped() {
		now := time.Now()
		q.mu.Lock()
		for len(q.list) > 0 && now.Sub(q.list[0].at) > q.r.MaxAge {
			q.dropLocked(q.list[0])
		}
		m, pause := q.nextLocked(now)
		q.mu.Unlock()
		if m != nil {
			q.work.Go(func() { q.deliver(m) })
		}
		q.logDropped(now)
		q.clear(now)
		if m != nil {
			continue
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-q.wake:
		case <-q.stopped:
		}
		timer.Stop()
	}
	q.work.Wait()
	q.clear(time.Now().Add(removePause)) // also if that was to wait
}

func (q *queue) isStopped() bool {
	select {
	case <-q.stopped:
		return true
	default:
		return false
	}
}

// nextLocked returns the message whose attempt may begin now, or how long to wait for one: the oldest of the
// tenant whose last attempt is longest ago.
func (q *queue) nextLocked(now time.Time) (m *message, pause time.Duration) {
	pause = sweepEvery
	if len(q.gone) > 0 {
		pause = min(pause, max(0, q.goneAt.Sub(now)))
	}
	most := parallel
	if q.streak > 0 {
		most = 1
	}
	if q.busy >= most {
		return nil, pause
	}
	if wait := q.next.Sub(now); wait > 0 {
		return nil, min(pause, wait)
	}
	for _, other := range q.list {
		if other.busy {
			continue
		}
		if wait := other.due.Sub(now); wait > 0 {
			pause = min(pause, wait)
			continue
		}
		if m == nil || q.turn[other.tenant] < q.turn[m.tenant] {
			m = other
		}
	}
	if m == nil {
		return nil, pause
	}
	q.turns++
	q.turn[m.tenant] = q.turns
	m.busy, q.busy = true, q.busy+1
	q.next = now.Add(time.Second / time.Duration(q.r.Rate))
	return m, 0
}

// logDropped tells the operator that messages were dropped.
func (q *queue) logDropped(now time.Time) {
	q.mu.Lock()
	n := q.count.dropped - q.loggedN
	if n == 0 || now.Sub(q.logged) < logEvery {
		q.mu.Unlock()
		return
	}
	q.loggedN, q.logged = q.count.dropped, now
	q.mu.Unlock()
	q.s.log.Warn("messages of a webhook were dropped: the receiver does not take them", "webhook", q.r.Name, "messages", n, "queue_size", q.r.QueueSize, "max_age", q.r.MaxAge)
}

// clear removes from the database what is not needed there any more. A message whose removal does
// not succeed before the daemon ends is sent again.
func (q *queue) clear(now time.Time) {
	q.mu.Lock()
	keys := q.gone
	if len(keys) == 0 || now.Before(q.goneAt) {
		q.mu.Unlock()
		return
	}
	q.gone = nil
	q.mu.Unlock()
	err := q.remove(keys)
	if err == nil {
		return
	}
	q.mu.Lock()
	q.gone, q.goneAt = append(keys, q.gone...), now.Add(removePause)
	q.mu.Unlock()
	q.s.log.Warn("removing messages that were delivered (it will be retried)", "webhook", q.r.Name, "error", err)
}

// deliver makes one attempt.
func (q *queue) deliver(m *message) {
	wait, err := q.post(m)
	q.mu.Lock()
	was := q.streak
	m.busy, q.busy = false, q.busy-1
	if err == nil {
		q.streak, q.err = 0, ""
		if q.takeOutLocked(m) {
			q.count.delivered++
		}
	} else if q.s.ctx.Err() == nil {
		now := time.Now()
		q.count.failed++
		q.streak++
		q.err = err.Error()
		m.due = now.Add(vary(min(firstPause<<min(m.attempts, 20), lastPause)))
		m.attempts++
		if q.streak > 1 { // one failure may be about the message
			wait = max(wait, vary(min(firstProbe<<min(q.streak-2, 20), lastProbe)))
		}
		if next := now.Add(wait); next.After(q.next) {
			q.next = next
		}
	}
	streak, pending := q.streak, len(q.list)
	q.mu.Unlock()
	q.wakeUp()
	switch {
	case was == 0 && streak > 0:
		q.s.log.Warn("a webhook fails: it will be retried", "webhook", q.r.Name, "message", m.id, "error", err, "pending", pending)
	case was > 1 && streak == 0:
		q.s.log.Info("a webhook works again", "webhook", q.r.Name, "attempts", was, "pending", pending)
	}
}

// vary returns d with up to a fifth more or less.
func vary(d time.Duration) time.Duration {
	return d - d/5 + rand.N(2*d/5+1)
}

// maxAnswer is how much of the body of an answer is read, so that its connection can be used again.
const maxAnswer = 64 << 10

// post sends a message once. wait is how long the receiver asks to be left alone, if it does.
func (q *queue) post(m *message) (wait time.Duration, err error) {
	keys, err := q.r.Secrets()
	if err != nil {
		return 0, fmt.Errorf("signing: %w", err)
	}
	ctx, cancel := context.WithTimeout(q.s.ctx, q.r.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, q.r.URL, bytes.NewReader(m.body))
	if err != nil {
		return 0, err
	}
	at := strconv.FormatInt(time.Now().Unix(), 10)
	for name, value := range map[string]string{
		"Content-Type": "application/json", "User-Agent": q.s.o.UserAgent,
		"Webhook-Id": m.id, "Webhook-Timestamp": at, "Webhook-Signature": signature(keys, m.id, at, m.body),
	} {
		req.Header.Set(name, value)
	}
	res, err := q.client.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok { // which contains the URL
			err = e.Err
		}
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("no answer within %v", q.r.Timeout)
		}
		return 0, err
	}
	defer res.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxAnswer)) // the status says enough
	if res.StatusCode >= 200 && res.StatusCode < 300 {
		return 0, nil
	}
	err = fmt.Errorf("the receiver answers %d %s", res.StatusCode, http.StatusText(res.StatusCode))
	if res.StatusCode >= 300 && res.StatusCode < 400 {
		err = fmt.Errorf("%w: redirects are not followed, so url must be where it leads to", err)
	}
	if res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable {
		wait = retryAfter(res.Header.Get("Retry-After"), time.Now())
	}
	return wait, err
}

// retryAfter returns the time that a header asks for (RFC 9110, section 10.2.3), up to longestWait.
func retryAfter(value string, now time.Time) time.Duration {
	if n, err := strconv.ParseUint(value, 10, 31); err == nil {
		return min(time.Duration(n)*time.Second, longestWait)
	}
	at, err := http.ParseTime(value)
	if err != nil {
		return 0
	}
	return min(max(0, at.Sub(now)), longestWait)
}
