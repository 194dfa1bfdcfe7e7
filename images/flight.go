package images

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// flights shares work between those who want the same result at the same time. The work ends early when the
// last of them has gone.
type flights struct {
	mu      sync.Mutex
	flying  map[string]*flight // guarded by mu
	workers sync.WaitGroup     // the work, also that which has been given up and is ending
}

type flight struct {
	done    chan struct{} // closed when stack and err are set
	stack   []Unpacked
	err     error
	now     atomic.Pointer[Progress]
	owner   *incoming
	waiters int // guarded by flights.mu
	cancel  context.CancelCauseFunc
}

// progressEvery is how often those who wait hear of the work.
const progressEvery = 100 * time.Millisecond

// do returns the result of work for key. It starts the work, unless a request is doing it: own is false if that
// is another one than in. The context of the work ends with base. report, if not nil, hears of its progress.
func (f *flights) do(ctx, base context.Context, key string, in *incoming, report func(Progress), work func(context.Context, *flight) ([]Unpacked, error)) (stack []Unpacked, own bool, err error) {
	f.mu.Lock()
	job := f.flying[key]
	if job == nil && base.Err() != nil {
		f.mu.Unlock()
		return nil, true, context.Cause(base)
	}
	if job == nil {
		job = &flight{done: make(chan struct{}), owner: in}
		var workCtx context.Context
		workCtx, job.cancel = context.WithCancelCause(base)
		if f.flying == nil {
			f.flying = map[string]*flight{}
		}
		f.flying[key] = job
		f.workers.Go(func() {
			job.stack, job.err = work(workCtx, job)
			f.mu.Lock()
			f.forgetLocked(key, job)
			f.mu.Unlock()
			close(job.done)
			job.cancel(nil)
		})
	}
	job.waiters++
	own = job.owner == in
	f.mu.Unlock()

	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	var told *Progress
	tell := func() {
		if now := job.now.Load(); now != told && report != nil {
			told = now
			report(*now)
		}
	}
	for {
		select {
		case <-job.done:
			tell() // work that ends within one tick is heard of too
			return job.stack, own, job.err
		case <-ctx.Done():
			f.leave(key, job, context.Cause(ctx))
			return nil, own, context.Cause(ctx)
		case <-tick.C:
			tell()
		}
	}
}

// close ends all work by end, and waits for it. After that, do fails.
func (f *flights) close(end func()) {
	f.mu.Lock() // workers.Go must not run beside Wait
	end()
	f.mu.Unlock()
	f.workers.Wait()
}

func (f *flights) leave(key string, job *flight, cause error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if job.waiters--; job.waiters == 0 {
		f.forgetLocked(key, job) // the next one starts anew
		job.cancel(cause)
	}
}

func (f *flights) forgetLocked(key string, job *flight) {
	if f.flying[key] == job {
		delete(f.flying, key)
	}
}

// report tells the request how far it is, one call at a time.
func (in *incoming) report(p Progress) {
	if in.req.Progress == nil {
		return
	}
	in.reporting.Lock()
	defer in.reporting.Unlock()
	in.req.Progress(p)
}
