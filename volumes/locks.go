package volumes

import (
	"sync"
)

// locks are mutexes by name, which exist while somebody has or wants them.
type locks struct {
	mu    sync.Mutex
	names map[string]*namedLock
}

type namedLock struct {
	mu    sync.Mutex
	users int // under locks.mu
}

// lock locks name and returns what unlocks it.
func (l *locks) lock(name string) (unlock func()) {
	l.mu.Lock()
	n := l.names[name]
	if n == nil {
		if l.names == nil {
			l.names = map[string]*namedLock{}
		}
		n = &namedLock{}
		l.names[name] = n
	}
	n.users++
	l.mu.Unlock()
	n.mu.Lock()
	return func() {
		n.mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if n.users--; n.users == 0 {
			delete(l.names, name)
		}
	}
}
