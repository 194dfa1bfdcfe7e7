package report

import (
	"math"
	"math/rand/v2"
	"slices"
)

const (
	// resamples is how many samples of its samples a bootstrap interval rests on. Efron and
	// Tibshirani, An Introduction to the Bootstrap (1993), ask for a thousand or more.
	resamples = 2000
	// confidence is the share of resamples that an interval covers.
	confidence = 0.95
	// fewest is how many samples an interval needs; with fewer it is from the least to the largest.
	fewest = 5
)

// Quantile returns the sample below which a fraction q of all samples lies; 0 without samples.
func Quantile(samples []float64, q float64) float64 {
	if len(samples) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// Median returns the median; 0 without samples.
func Median(samples []float64) float64 {
	sorted := slices.Sorted(slices.Values(samples))
	n := len(sorted)
	switch {
	case n == 0:
		return 0
	case n%2 == 0:
		return (sorted[n/2-1] + sorted[n/2]) / 2
	}
	return sorted[n/2]
}

// interval returns the bounds between which the middle of the values of f lies, over resamples of
// the numbers below n. They are the same in every run.
func interval(n int, f func(index []int) float64) (lo, hi float64) {
	random := rand.New(rand.NewPCG(1, 2))
	index := make([]int, n)
	values := make([]float64, resamples)
	for i := range values {
		for k := range index {
			index[k] = random.IntN(n)
		}
		values[i] = f(index)
	}
	slices.Sort(values)
	cut := int(math.Round(float64(resamples) * (1 - confidence) / 2))
	return values[cut], values[resamples-1-cut]
}

// at returns the samples with the given numbers.
func at(samples []float64, index []int, into []float64) []float64 {
	into = into[:0]
	for _, i := range index {
		into = append(into, samples[i])
	}
	return into
}

// summarize computes a row's statistics from its samples.
func (r *Row) summarize() {
	if len(r.Samples) == 0 {
		return
	}
	r.P50 = Median(r.Samples)
	r.P90 = Quantile(r.Samples, 0.9)
	if r.Unit.rises() {
		r.P90 = Quantile(r.Samples, 0.1)
	}
	buffer := make([]float64, 0, len(r.Samples))
	if len(r.Samples) < fewest {
		r.Lo, r.Hi = slices.Min(r.Samples), slices.Max(r.Samples)
	} else {
		r.Lo, r.Hi = interval(len(r.Samples), func(index []int) float64 { return Median(at(r.Samples, index, buffer)) })
	}
	if r.BareP50 = Median(r.BareSamples); r.BareP50 == 0 {
		return
	}
	r.Ratio = r.P50 / r.BareP50
	r.RatioLo, r.RatioHi = r.Lo/r.BareP50, r.Hi/r.BareP50
	n, m := len(r.Samples), len(r.BareSamples)
	if min(n, m) < fewest {
		return
	}
	// Of as many samples, both were taken in turn: a noisy moment hit them together.
	other := make([]float64, 0, m)
	random := rand.New(rand.NewPCG(5, 6))
	bare := make([]int, m)
	r.RatioLo, r.RatioHi = interval(n, func(index []int) float64 {
		if n == m {
			bare = index
		} else {
			for i := range bare {
				bare[i] = random.IntN(m)
			}
		}
		return Median(at(r.Samples, index, buffer)) / Median(at(r.BareSamples, bare, other))
	})
}
