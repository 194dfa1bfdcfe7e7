package bench

import (
	"time"

	"github.com/boxd/boxd/bench/report"
)

// series has the samples of one thing.
type series []time.Duration

// p50 returns the median, as the row of s has it.
func (s series) p50() time.Duration { return time.Duration(report.Median(s.values(nanoseconds))) }

// sample takes one figure.
type sample func() (time.Duration, error)

// timed turns a function into a sample of its run time.
func timed(f func() error) sample {
	return func() (time.Duration, error) {
		begin := time.Now()
		err := f()
		return time.Since(begin), err
	}
}

// alternate takes n samples of each function in turn, after warming up with a tenth as many.
// It stops at the first failure, and when the run is interrupted.
func (b *bench) alternate(n int, functions ...sample) ([]series, error) {
	all := make([]series, len(functions))
	warm := max(n/10, 2)
	for i := range warm + n {
		if err := b.ctx.Err(); err != nil {
			return all, err
		}
		for k, f := range functions {
			d, err := f()
			if err != nil {
				return all, err
			}
			if i >= warm {
				all[k] = append(all[k], d)
			}
		}
	}
	return all, nil
}
