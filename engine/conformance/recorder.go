package conformance

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/boxtest"
)

// fails runs a case of a promise that the engine does not hold, and reports whether it fails.
// What it complains about is logged.
func fails(t *testing.T, run func(testing.TB)) bool {
	ctx, cancel := context.WithTimeout(t.Context(), boxtest.Patience/4)
	defer cancel()
	r := &recorder{TB: t, ctx: ctx}
	r.do(func() { run(r) })
	for _, f := range slices.Backward(r.cleanups) {
		r.do(f)
	}
	return r.Failed()
}

// recorder is a testing.TB whose failures fail no test.
type recorder struct {
	testing.TB
	ctx context.Context

	mu       sync.Mutex
	failed   bool
	cleanups []func()
}

// do calls f, which may call FailNow.
func (r *recorder) do(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	<-done
}

func (r *recorder) Context() context.Context { return r.ctx }

func (r *recorder) Deadline() (time.Time, bool) { return r.ctx.Deadline() }

func (r *recorder) Fail() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failed = true
}

func (r *recorder) Failed() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.failed
}

func (r *recorder) FailNow() {
	r.Fail()
	runtime.Goexit()
}

func (r *recorder) Error(args ...any) {
	r.TB.Helper()
	r.TB.Log("as listed: " + fmt.Sprint(args...))
	r.Fail()
}

func (r *recorder) Errorf(format string, args ...any) {
	r.TB.Helper()
	r.TB.Logf("as listed: "+format, args...)
	r.Fail()
}

func (r *recorder) Fatal(args ...any) {
	r.TB.Helper()
	r.Error(args...)
	runtime.Goexit()
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.TB.Helper()
	r.Errorf(format, args...)
	runtime.Goexit()
}

// Skip and SkipNow end the case, which then has not failed.
func (r *recorder) Skip(args ...any) {
	r.TB.Log(args...)
	runtime.Goexit()
}

func (r *recorder) Skipf(format string, args ...any) {
	r.TB.Logf(format, args...)
	runtime.Goexit()
}

func (r *recorder) SkipNow() { runtime.Goexit() }

func (r *recorder) Cleanup(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.cleanups = append(r.cleanups, f)
}

// sub runs a part of a case, as a test of its own if it can be one.
func sub(t testing.TB, name string, f func(testing.TB)) {
	t.Helper()
	if p, is := t.(*testing.T); is {
		p.Run(name, func(t *testing.T) { f(t) })
		return
	}
	f(t)
}
