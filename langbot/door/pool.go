package door

import (
	"cmp"
	"sync"
	"sync/atomic"
	"time"
)

// pool is a number of bytes that connections share, by the rules of Memory. Its users wait
// for nothing but the end of connections that were cut.
type pool struct {
	most int

	mu     sync.Mutex
	used   int            // by all shares, beyond their private bytes
	peak   int            // the highest value of used so far
	dying  int            // the part of used that belongs to dying shares
	of     map[string]int // the rest of used, by instance
	shares map[*share]struct{}
	freed  sync.Cond // used has decreased, or a share is dying
}

// share is one connection's part of a pool.
type share struct {
	instance string

	cut   func()        // ends the connection and gives back its bytes; nil if it must not be cut
	moved *atomic.Int64 // when its peer last accepted bytes, as a time of now; set if cut is

	// Guarded by pool.mu.
	used  int
	dying bool // cut was called or is about to be: the share gets nothing more
}

func (p *pool) init(most int) {
	p.most, p.of, p.shares, p.freed.L = most, map[string]int{}, map[*share]struct{}{}, &p.mu
}

// beyond returns how many of n bytes are beyond a connection's private bytes.
func beyond(n int) int { return max(0, n-own) }

// fitsLocked reports whether s may use n more bytes once others have returned the bytes
// coming. A connection may always use its private bytes. Beyond that, an instance may use
// half of what the other instances leave, and a connection at most as much as it leaves
// unused of its instance's half.
func (p *pool) fitsLocked(s *share, n int, coming freeing) bool {
	has := beyond(s.used + n)
	more := has - beyond(s.used)
	same := p.of[s.instance] - coming.same
	others := p.used - coming.all - same
	return more == 0 || has <= (p.most-others)/2-(same+more)
}

// freeing is how many bytes a pool is about to get back.
type freeing struct {
	all  int
	same int // the part of all that counts for the instance in question
}

// take takes n bytes for s, if s may have them.
func (p *pool) take(s *share, n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s.dying || !p.fitsLocked(s, n, freeing{}) {
		return false
	}
	p.addLocked(s, n)
	return true
}

// takeOrCut takes n bytes for s, and makes room if necessary: it cuts connections whose peers
// have accepted nothing for the time stall, those with the most bytes in the instances with
// the most bytes first. If cutting all of them would not be enough, it cuts none of them but
// s, if the peer of s is one of them.
func (p *pool) takeOrCut(s *share, n int, stall time.Duration) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for !s.dying && !p.fitsLocked(s, n, freeing{}) {
		if p.fitsLocked(s, n, freeing{all: p.dying}) {
			p.freed.Wait() // not for long, because the dying connections are being closed
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

// stalledLocked returns the stalled share to cut first, and how many bytes the stalled
// shares other than s have.
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

// stalledLocked reports whether s has bytes beyond its private ones that its peer does not
// accept.
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
			s.moved.Store(int64(now())) // there was nothing to accept until now
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

// now returns the time of a monotonic clock.
func now() time.Duration { return time.Since(epoch) }
