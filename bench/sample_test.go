package bench

import (
	"errors"
	"testing"
	"time"
)

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
