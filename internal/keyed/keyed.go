// Package keyed provides one lock per name: one goroutine at a time works on a name, and
// goroutines that work on different names do not wait for each other.
package keyed

import (
	"context"
	"fmt"
	"sync"
)

// Locks holds one lock per name. A lock exists only while a goroutine holds it or waits for
// it. The zero value is ready to use.
type Locks struct {
	mu    sync.Mutex
	locks map[string]*lock
}

type lock struct {
	held  chan struct{} // has one element while the lock is held
	users int           // goroutines that hold it or wait for it; guarded by Locks.mu
}

// Lock waits for the lock of name. The caller must call unlock exactly once.
func (l *Locks) Lock(name string) (unlock func()) {
	unlock, _ = l.LockContext(context.Background(), name) // cannot fail: this context never ends
	return unlock
}

// LockContext is like Lock, but gives up when ctx ends. The error then wraps the cause of ctx.
func (l *Locks) LockContext(ctx context.Context, name string) (unlock func(), err error) {
	n := l.join(name)
	select {
	case n.held <- struct{}{}:
		return func() { <-n.held; l.leave(name, n) }, nil
	case <-ctx.Done():
		l.leave(name, n)
		return nil, fmt.Errorf("waiting for earlier work on the same name: %w", context.Cause(ctx))
	}
}

// Len is the number of locks that exist.
func (l *Locks) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.locks)
}

func (l *Locks) join(name string) *lock {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.locks[name]
	if n == nil {
		if l.locks == nil {
			l.locks = map[string]*lock{}
		}
		n = &lock{held: make(chan struct{}, 1)}
		l.locks[name] = n
	}
	n.users++
	return n
}

func (l *Locks) leave(name string, n *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.users--; n.users == 0 {
		delete(l.locks, name)
	}
}
