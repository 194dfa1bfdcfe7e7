package door

import (
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// check compares the figures of a pool with its shares and its limit.
func (p *pool) check(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	used, dying, of := 0, 0, map[string]int{}
	for s := range p.shares {
		if s.used <= 0 {
			t.Errorf("a share of %d bytes is kept", s.used)
		}
		used += beyond(s.used)
		if s.dying {
			dying += beyond(s.used)
		} else if beyond(s.used) > 0 {
			of[s.instance] += beyond(s.used)
		}
	}
	if used != p.used || dying != p.dying || !maps.Equal(of, p.of) || p.used > p.peak || p.peak > p.most {
		t.Errorf("counted %d, dying %d, others %v; the pool says %d, %d, %v and has had %d of %d", used, dying, of, p.used, p.dying, p.of, p.peak, p.most)
	}
}

// wantEmpty checks that everything was given back.
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

// TestHalves: each connection takes as much as it can get. Everyone finds some room, but
// less than those before. A connection of another instance finds more.
func TestHalves(t *testing.T) {
	p := newPool(2 << 20)
	var all []*share
	fill := func(instance string, want int) {
		t.Helper()
		s := &share{instance: instance}
		all = append(all, s)
		if !p.take(s, own) {
			t.Fatal("its own was refused")
		}
		for p.take(s, 1<<10) {
		}
		if got := beyond(s.used) >> 10; got != want {
			t.Errorf("share %d has %d KiB, want %d", len(all), got, want)
		}
	}
	for _, want := range []int{512, 256, 128, 64, 32, 16, 8, 4, 2, 1, 0} {
		fill("", want)
	}
	for _, want := range []int{256, 128, 64} { // of the remaining 1025 KiB
		fill("another", want)
	}
	fill("third", (1025-448)/4)
	p.check(t)
	for _, s := range all[11:] {
		p.give(s, s.used)
	}
	p.give(all[0], all[0].used-own)
	if !p.take(all[1], 64<<10) || !p.take(all[9], 64<<10) {
		t.Error("what came back is not for everyone")
	}
	for _, s := range all[:11] {
		p.give(s, s.used)
	}
	p.wantEmpty(t)
}

// reader is a share whose bytes are given back a while after it was cut, as bytes that are
// being written are.
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

// TestTakeOrCut: of the shares whose peers accept nothing, the one with the most bytes is cut
// first.
func TestTakeOrCut(t *testing.T) {
	p := newPool(32 << 20)
	const stall = time.Hour
	long := now() - 2*stall
	healthy := newReader(p, now(), 5<<20)
	large, small := newReader(p, long, 4<<20), newReader(p, long, 1<<20)
	tiny := newReader(p, long, own)
	next := newReader(p, now(), own/2)
	taken := make(chan bool)
	go func() { taken <- p.takeOrCut(&next.share, 5<<20, stall) }()
	p.give(&large.share, <-large.late)
	if !<-taken {
		t.Error("there is room, and nothing was given")
	}
	p.check(t)
	if small.cuts.Load() != 0 || healthy.cuts.Load() != 0 || tiny.cuts.Load() != 0 {
		t.Error("one more was cut than needed, or another one")
	}
	if p.takeOrCut(&next.share, 4<<20, stall) {
		t.Error("what is left to others was given")
	}
	if p.takeOrCut(&large.share, 1, stall) || p.take(&large.share, 1) {
		t.Error("a connection that was cut was given something")
	}
	if small.cuts.Load() != 0 || healthy.cuts.Load() != 0 || tiny.cuts.Load() != 0 || next.cuts.Load() != 0 {
		t.Error("one that takes its replies, or has too little to help, was cut")
	}
	next.share.moved.Store(int64(long)) // now its own peer has stalled
	go func() { taken <- p.takeOrCut(&next.share, 2<<20, stall) }()
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

// TestCutOfInstances: a share of the instance with the most bytes is cut first.
func TestCutOfInstances(t *testing.T) {
	p := newPool(16 << 20)
	const stall = time.Hour
	long := now() - 2*stall
	var many []*reader
	for range 3 {
		r := newReader(p, long, 1<<20)
		many = append(many, r)
	}
	one := newReader(p, long, own)
	p.give(&one.share, own)
	one.share.instance = "one"
	if !p.take(&one.share, 2<<20) {
		t.Fatal("no room")
	}
	one.share.moved.Store(int64(long))
	next := newReader(p, now(), own)
	p.give(&next.share, own)
	next.share.instance = "next"
	taken := make(chan bool)
	go func() { taken <- p.takeOrCut(&next.share, 3<<20, stall) }()
	var cut *reader
	eventually(t, "one is cut", func() bool {
		for _, r := range append(many, one) {
			if r.cuts.Load() > 0 {
				cut = r
			}
		}
		return cut != nil
	})
	p.give(&cut.share, cut.share.used)
	if !<-taken || cut == one {
		t.Error("the one was cut that has the most alone")
	}
	p.check(t)
	for _, r := range append(many, one, next) {
		p.give(&r.share, r.share.used)
	}
	p.wantEmpty(t)
}

// TestPoolAtRandom: many shares take, make room, give and are cut concurrently.
func TestPoolAtRandom(t *testing.T) {
	p := newPool(8 << 20)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			var mu sync.Mutex
			var has []int
			instance := strings.Repeat("i", i%3)
			s := &share{instance: instance, moved: new(atomic.Int64)}
			drop := func(keep int) {
				mu.Lock()
				defer mu.Unlock()
				for len(has) > keep {
					p.give(s, has[0])
					has = has[1:]
				}
			}
			s.cut = func() { drop(1) } // the reply that is being written is given back later
			for range 500 {
				n := 1 + rand.IntN(1<<(10+rand.IntN(11)))
				stall := time.Duration(rand.IntN(2)) * time.Hour
				if p.takeOrCut(s, n, stall) {
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
					s = &share{instance: instance, moved: new(atomic.Int64), cut: s.cut}
				}
			}
			drop(0)
		})
	}
	wg.Wait()
	p.wantEmpty(t)
}
