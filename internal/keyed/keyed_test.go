package keyed

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
)

// TestLock: goroutines with the same name take turns, and no lock is left behind.
func TestLock(t *testing.T) {
	var locks Locks
	var wg sync.WaitGroup
	counts := map[string]*int{"a": new(int), "b": new(int)}
	for range 100 {
		for name, count := range counts {
			wg.Go(func() {
				defer locks.Lock(name)()
				*count++ // the race detector sees two at once
			})
		}
	}
	wg.Wait()
	for name, count := range counts {
		if *count != 100 {
			t.Errorf("%s: %d, want 100", name, *count)
		}
	}
	if n := locks.Len(); n != 0 {
		t.Errorf("%d locks are left", n)
	}
}

func TestNamesAreIndependent(t *testing.T) {
	var locks Locks
	unlockA := locks.Lock("a")
	unlockB := locks.Lock("b") // does not wait
	if n := locks.Len(); n != 2 {
		t.Errorf("%d locks, want 2", n)
	}
	unlockA()
	unlockB()
}

// TestLockContext: a goroutine that gives up leaves the lock to the next one.
func TestLockContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var locks Locks
		unlock := locks.Lock("a")
		gone := errors.New("the client is gone")
		ctx, cancel := context.WithCancelCause(t.Context())
		given := make(chan error)
		go func() {
			_, err := locks.LockContext(ctx, "a")
			given <- err
		}()
		synctest.Wait()
		cancel(gone)
		if err := <-given; !errors.Is(err, gone) {
			t.Errorf("LockContext: %v, want %v", err, gone)
		}
		unlock()
		unlock, err := locks.LockContext(t.Context(), "a")
		if err != nil {
			t.Fatal(err)
		}
		unlock()
		if n := locks.Len(); n != 0 {
			t.Errorf("%d locks are left", n)
		}
	})
}
