package door

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// check wants the figures of a pool to be those of its shares, and within the bound.
func (p *pool) check(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	used, dying := 0, 0
	for s := range p.shares {
		if s.used <= 0 {
			t.Errorf("a share of %d bytes is kept", s.used)
		}
		used += beyond(s.used)
		if s.dying {
			dying += beyond(s.used)
		}
	}
	if used != p.used || dying != p.dying || p.used > p.peak || p.peak > p.most {
		t.Errorf("counted %d, dying %d; the pool says %d, %d and has had %d of %d", used, dying, p.used, p.dying, p.peak, p.most)
	}
}

// wantEmpty wants everything to have come back.
func (p *pool) wantEmpty(t *testing.T) {
	t.Helper()
	p.check(t)
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.used != 0 || p.dying != 0 || len(p.shares) != 0 {
		t.Errorf("%d bytes, %d dying, of %d shares did not come back", p.used, p.dying, len(p.shares))
	}
}

func newPool(most int) *pool {
	p := new(pool)
	p.init(most)
	return p
}

// TestHalves: each takes as much as it is given; everyone finds something, and less than
// who came before.
func TestHalves(t *testing.T) {
	p := newPool(1 << 20)
	var all []*share
	for _, want := range []int{512 << 10, 256 << 10, 128 << 10, 64 << 10, 32 << 10, 16 << 10, 8 << 10, 4 << 10, 2 << 10, 1 << 10, 0} {
		s := new(share)
		all = append(all, s)
		if !p.take(s, own) {
			t.Fatal("its own was refused")
		}
		for p.take(s, 1<<10) {
		}
		if beyond(s.used) != want {
			t.Errorf("share %d has %d bytes, want %d", len(all), beyond(s.used), want)
		}
	}
	p.check(t)
	p.give(all[0], all[0].used-own)
	if !p.take(all[1], 64<<10) || !p.take(all[9], 64<<10) {
		t.Error("what came back is not for everyone")
	}
	for _, s := range all {
		p.give(s, s.used)
	}
	p.wantEmpty(t)
}

// reader is a share whose bytes come back a while after it was cut, as those do that
// are being written.
type reader struct {
	share
	late chan int
	cuts atomic.Int32
}

func newReader(p *pool, moved time.Duration, n int) *reader {
	r := &reader{late: make(chan int, 1)}
	r.share.moved = new(atomic.Int64)
	r.share.cut = func() {
		r.cuts.Add(1)
		r.late <- n
	}
	if !p.take(&r.share, n) {
		panic("no room")
	}
	r.share.moved.Store(int64(moved))
	return r
}

// TestPress: the one with the most goes first, of those whose peer takes nothing.
func TestPress(t *testing.T) {
	p := newPool(16 << 20)
	const stall = time.Hour
	long := now() - 2*stall
	healthy := newReader(p, now(), 5<<20)
	large, small := newReader(p, long, 4<<20), newReader(p, long, 1<<20)
	tiny := newReader(p, long, own)
	next := newReader(p, now(), own/2)
	taken := make(chan bool)
	go func() { taken <- p.press(&next.share, 5<<20, stall) }()
	p.give(&large.share, <-large.late)
	if !<-taken {
		t.Error("there is room, and nothing was given")
	}
	p.check(t)
	if small.cuts.Load() != 0 || healthy.cuts.Load() != 0 || tiny.cuts.Load() != 0 {
		t.Error("one more was cut than needed, or another one")
	}
	if p.press(&next.share, 4<<20, stall) {
		t.Error("what is left to others was given")
	}
	if p.press(&large.share, 1, stall) || p.take(&large.share, 1) {
		t.Error("a connection that was cut was given something")
	}
	if small.cuts.Load() != 0 || healthy.cuts.Load() != 0 || tiny.cuts.Load() != 0 || next.cuts.Load() != 0 {
		t.Error("one that takes its replies, or has too little to help, was cut")
	}
	next.share.moved.Store(int64(long)) // now it does not take them itself
	go func() { taken <- p.press(&next.share, 2<<20, stall) }()
	<-next.late
	if <-taken {
		t.Error("a connection that was cut was given something")
	}
	p.check(t)
	for _, r := range []*reader{healthy, small, tiny, next} {
		p.give(&r.share, r.share.used)
	}
	p.wantEmpty(t)
}

// TestPoolAtRandom has many take, press, give and be cut at once.
func TestPoolAtRandom(t *testing.T) {
	p := newPool(4 << 20)
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			var mu sync.Mutex
			var has []int
			s := &share{moved: new(atomic.Int64)}
			drop := func(keep int) {
				mu.Lock()
				defer mu.Unlock()
				for len(has) > keep {
					p.give(s, has[0])
					has = has[1:]
				}
			}
			s.cut = func() { drop(1) } // the one that is being written comes later
			for range 500 {
				n := 1 + rand.IntN(1<<(10+rand.IntN(11)))
				stall := time.Duration(rand.IntN(2)) * time.Hour
				if p.press(s, n, stall) {
					mu.Lock()
					has = append(has, n)
					mu.Unlock()
				}
				p.check(t)
				p.mu.Lock()
				dying := s.dying
				p.mu.Unlock()
				if dying || rand.IntN(4) == 0 {
					drop(0)
				}
				if dying {
					s = &share{moved: new(atomic.Int64), cut: s.cut}
				}
			}
			drop(0)
		})
	}
	wg.Wait()
	p.wantEmpty(t)
}
