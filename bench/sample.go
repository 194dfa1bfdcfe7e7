package bench

import (
	"slices"
	"time"
)

// series has the samples of one thing.
type series []time.Duration

// quantile returns the sample below which a fraction q of all samples lies.
func (s series) quantile(q float64) time.Duration {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

func (s series) p50() time.Duration { return s.quantile(0.5) }

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
