// Package keyed locks by name: work on one name is done by one goroutine at a time, and work
// on different names does not wait.
package keyed

import (
	"context"
	"fmt"
	"sync"
)

// Locks are locks by name. A lock exists while a goroutine holds it or waits for it. The
// zero value has no locks and is ready to use.
type Locks struct {
	mu    sync.Mutex
	locks map[string]*lock
}

type lock struct {
	held  chan struct{} // has one element while the lock is held
	users int           // goroutines that hold it or wait for it; guarded by Locks.mu
}

// Lock waits for the lock of name. The caller calls unlock once.
func (l *Locks) Lock(name string) (unlock func()) {
	n := l.join(name)
	n.held <- struct{}{}
	return func() { <-n.held; l.leave(name, n) }
}

// LockContext is Lock, and gives up when ctx ends: the error then wraps its cause.
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
