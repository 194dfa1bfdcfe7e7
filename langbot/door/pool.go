package door

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"
)

// pool is a number of bytes that connections share; see Memory for how. Its users never
// wait for anything but the end of connections that were cut.
type pool struct {
	most int

	mu     sync.Mutex
	used   int            // by all shares, beyond what is their own
	peak   int            // the highest that used has been
	dying  int            // the part of used that belongs to shares that are dying
	of     map[string]int // the rest of used, by instance
	shares map[*share]struct{}
	freed  sync.Cond // used has become less, or a share is dying
}

// share is what one connection has of a pool.
type share struct {
	instance string

	cut   func()        // ends the connection and gives back all; nil if nobody may
	moved *atomic.Int64 // when its peer has last taken something, by now; with cut

	// Guarded by pool.mu.
	used  int
	dying bool // cut was called or is about to be: it gets nothing more
}

func (p *pool) init(most int) {
	p.most, p.of, p.shares, p.freed.L = most, map[string]int{}, map[*share]struct{}{}, &p.mu
}

// beyond is the part of n bytes that is not a connection's own.
func beyond(n int) int { return max(0, n-own) }

// fitsLocked reports whether s may use n more bytes, once `coming` bytes of others are
// returned. A connection may always use its private share. Beyond that, an instance may use
// half of the bytes that the other instances leave, and a connection at most as many as it
// leaves unused of the half of its instance.
func (p *pool) fitsLocked(s *share, n int, coming freeing) bool {
	has := beyond(s.used + n)
	more := has - beyond(s.used)
	same := p.of[s.instance] - coming.same
	others := p.used - coming.all - same
	return more == 0 || has <= (p.most-others)/2-(same+more)
}

// freeing is what a pool is going to have back.
type freeing struct {
	all  int
	same int // the part of all that counts for the instance that is looked at
}

// take takes n bytes, if s may have them.
func (p *pool) take(s *share, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.dying || !p.fitsLocked(s, n, freeing{}) {
		return false
	}
	p.addLocked(s, n)
	return true
}

// press is take, and makes room: of the connections whose peer has taken nothing for
// this long, some are cut until there is enough: of the instances with the most, those
// with the most. Where that would not do, none is but s, if its own peer is such a one.
func (p *pool) press(s *share, n int, stall time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !s.dying && !p.fitsLocked(s, n, freeing{}) {
		if p.fitsLocked(s, n, freeing{all: p.dying}) {
			p.freed.Wait() // not for long: their connections are closed
			continue
		}
		v, others := p.stalledLocked(s, stall)
		others.all += p.dying
		if !p.fitsLocked(s, n, others) {
			if !s.stalledLocked(stall) {
				return false
			}
			v = s
		}
		v.dying = true
		p.dying += beyond(v.used)
		p.countLocked(v, -beyond(v.used))
		p.freed.Broadcast()
		p.mu.Unlock()
		v.cut()
		p.mu.Lock()
	}
	if s.dying {
		return false
	}
	p.addLocked(s, n)
	return true
}

// stalledLocked returns the share to be cut first, of those that nobody takes from, and
// what others than s have of these.
func (p *pool) stalledLocked(s *share, stall time.Duration) (first *share, others freeing) {
	for o := range p.shares {
		if !o.stalledLocked(stall) {
			continue
		}
		if o != s {
			others.all += beyond(o.used)
			if o.instance == s.instance {
				others.same += beyond(o.used)
			}
		}
		if first == nil || cmp.Or(cmp.Compare(p.of[o.instance], p.of[first.instance]), cmp.Compare(o.used, first.used)) > 0 {
			first = o
		}
	}
	return first, others
}

// stalledLocked reports whether s has something that its peer does not take, and others
// could have.
func (s *share) stalledLocked(stall time.Duration) bool {
	return !s.dying && s.cut != nil && beyond(s.used) > 0 && now()-time.Duration(s.moved.Load()) >= stall
}

func (p *pool) addLocked(s *share, n int) {
	if n == 0 {
		return
	}
	if s.used == 0 {
		p.shares[s] = struct{}{}
		if s.moved != nil {
			s.moved.Store(int64(now())) // there was nothing to take until now
		}
	}
	more := beyond(s.used+n) - beyond(s.used)
	p.used += more
	p.countLocked(s, more)
	p.peak = max(p.peak, p.used)
	s.used += n
}

// countLocked counts n bytes for the instance of s.
func (p *pool) countLocked(s *share, n int) {
	p.of[s.instance] += n
	if p.of[s.instance] == 0 {
		delete(p.of, s.instance)
	}
}

// give gives n bytes back.
func (p *pool) give(s *share, n int) {
	if n == 0 {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	less := beyond(s.used) - beyond(s.used-n)
	s.used -= n
	p.used -= less
	if s.dying {
		p.dying -= less
	} else {
		p.countLocked(s, -less)
	}
	if s.used == 0 {
		delete(p.shares, s)
	}
	p.freed.Broadcast()
}

var epoch = time.Now()

// now is the time by a clock that nobody sets.
func now() time.Duration { return time.Since(epoch) }
