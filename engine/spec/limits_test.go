package spec

import "testing"

func TestProcessors(t *testing.T) {
	for _, c := range []struct {
		cpus       float64
		host, want int
	}{
		{Unlimited, 4, 4}, {0, 4, 4}, {0.01, 4, 1}, {1, 4, 1}, {1.000001, 4, 1}, {1.01, 4, 2}, {2.5, 4, 3}, {4, 4, 4}, {64, 4, 4}, {2, 1, 1},
	} {
		if got := (Limits{CPUs: c.cpus}).Processors(c.host); got != c.want {
			t.Errorf("%g of %d processors: %d, want %d", c.cpus, c.host, got, c.want)
		}
	}
}
