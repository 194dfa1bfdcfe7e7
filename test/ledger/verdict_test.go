package ledger

import (
	"fmt"
	"slices"
	"testing"
)

// boxLimit is the memory of the boxes.
const boxLimit = 64 << 20

// smallLimit and smallMargin replace boxLimit and margin in the short form of slow kinds, whose
// objects take seconds to add up to more than those.
const smallLimit, smallMargin = 16 << 20, 8 << 20

// margin is what a box may hold beyond its memory limit. It covers what kernels do not
// charge although they charge the object that it belongs to: contexts of descriptors
// (eventfd 64 bytes, timerfd and epoll 256 bytes), POSIX locks that a watcher has not seen yet,
// time-wait sockets, source addresses of multicast groups: 34 MB in the worst case of 131,072
// descriptors; and what other programs of the host do to counters of the whole host.
const margin = 32 << 20

// bound is what one box may hold of a kind.
type bound struct {
	most int64
	unit string // "bytes", or what is counted
}

// inMemory bounds a kind by the box's memory limit and a margin.
func inMemory() bound { return bound{boxLimit + margin, "bytes"} }

// share bounds a kind by its share of a pool of the whole host.
func share(most int64) bound { return bound{most, "objects"} }

// judge decides by the median of an odd number of runs: one number that another program of
// the host has moved decides nothing.
func (b bound) judge(held []int64) error {
	sorted := slices.Sorted(slices.Values(held))
	median := sorted[len(sorted)/2]
	if median > b.most {
		return fmt.Errorf("the kernel held %s, at most %s are the box's (all runs: %v)", b.format(median), b.format(b.most), held)
	}
	return nil
}

func (b bound) format(n int64) string {
	if b.unit == "bytes" {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%d %s", n, b.unit)
}

func TestJudge(t *testing.T) {
	const mib = 1 << 20
	for _, c := range []struct {
		name   string
		bound  bound
		held   []int64
		passes bool
	}{
		{"nothing held", inMemory(), []int64{0}, true},
		{"the counter fell meanwhile", inMemory(), []int64{-5 * mib}, true},
		{"all of the limit", inMemory(), []int64{64 * mib}, true},
		{"limit and margin", inMemory(), []int64{96 * mib}, true},
		{"a byte more", inMemory(), []int64{96*mib + 1}, false},
		{"netlink on 6.18 without a count", inMemory(), []int64{1501 * mib}, false},
		{"one of three is another program's", inMemory(), []int64{10 * mib, 500 * mib, 11 * mib}, true},
		{"two of three are too much", inMemory(), []int64{97 * mib, 10 * mib, 98 * mib}, false},
		{"the share", share(16), []int64{16, 16, 16}, true},
		{"more than the share", share(16), []int64{17}, false},
		{"refused", share(0), []int64{0}, true},
		{"not refused", share(0), []int64{1}, false},
	} {
		if err := c.bound.judge(c.held); (err == nil) != c.passes {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

func TestParseReport(t *testing.T) {
	for line, want := range map[string]report{
		"0 12 4096 holds as much as it wanted":       {worker: 0, objects: 12, bytes: 4096, reason: "as much as it wanted"},
		"3 0 0 done socket: operation not permitted": {worker: 3, done: true, reason: "socket: operation not permitted"},
		"2 0 0 ended": {worker: 2, ended: true},
	} {
		if got, err := parseReport(line); err != nil || got != want {
			t.Errorf("%q: %+v, %v", line, got, err)
		}
	}
	if r, err := parseReport("fatal error: out of memory"); err == nil {
		t.Errorf("%+v of a line that is none", r)
	}
}
