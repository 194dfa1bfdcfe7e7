package bench

import (
	"errors"
	"testing"
	"time"
)

func TestQuantile(t *testing.T) {
	cases := []struct {
		s    series
		q    float64
		want time.Duration
	}{
		{nil, 0.5, 0},
		{series{7}, 0.5, 7},
		{series{3, 1, 2}, 0.5, 2},
		{series{3, 1, 2}, 1, 3},
		{series{10, 9, 8, 7, 6, 5, 4, 3, 2, 1}, 0.9, 10},
	}
	for _, c := range cases {
		if got := c.s.quantile(c.q); got != c.want {
			t.Errorf("quantile(%v, %v) = %d, want %d", c.s, c.q, got, c.want)
		}
	}
}

func TestAlternate(t *testing.T) {
	b := &bench{ctx: t.Context()}
	order := ""
	mark := func(name string) sample {
		return func() (time.Duration, error) { order += name; return 1, nil }
	}
	all, err := b.alternate(3, mark("a"), mark("b"))
	if err != nil || len(all[0]) != 3 || len(all[1]) != 3 {
		t.Fatalf("alternate: %v, %v", all, err)
	}
	if order != "ababababab" {
		t.Errorf("order is %q", order)
	}
	broken := errors.New("broken")
	if _, err := b.alternate(3, func() (time.Duration, error) { return 0, broken }); !errors.Is(err, broken) {
		t.Errorf("error is %v", err)
	}
}
