package langbot

import (
	"context"
	"fmt"
	"sync"
)

// keyLock is one lock per name, waited for with a context. Names are independent.
type keyLock struct {
	mu    sync.Mutex
	names map[string]*named
}

type named struct {
	held  chan struct{} // holds one element while the lock is taken
	users int           // who has it or waits for it; guarded by keyLock.mu
}

// lock takes the lock of name; unlock gives it back and must be called once.
func (l *keyLock) lock(ctx context.Context, name string) (unlock func(), err error) {
	l.mu.Lock()
	n := l.names[name]
	if n == nil {
		if l.names == nil {
			l.names = map[string]*named{}
		}
		n = &named{held: make(chan struct{}, 1)}
		l.names[name] = n
	}
	n.users++
	l.mu.Unlock()
	select {
	case n.held <- struct{}{}:
		return func() { <-n.held; l.leave(name, n) }, nil
	case <-ctx.Done():
		l.leave(name, n)
		return nil, fmt.Errorf("waiting for what else is done to it: %w", context.Cause(ctx))
	}
}

func (l *keyLock) leave(name string, n *named) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n.users--; n.users == 0 {
		delete(l.names, name)
	}
}
