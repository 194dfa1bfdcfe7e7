package crash

import (
	"fmt"
	"slices"
	"time"
)

// recovery collects how long the daemon took to be ready again. It is reported, not
// judged: machines that run tests are busy with other things too.
type recovery struct{ took []time.Duration }

func (r *recovery) add(d time.Duration) { r.took = append(r.took, d) }

func (r *recovery) String() string {
	if len(r.took) == 0 {
		return "the daemon was never killed"
	}
	slices.Sort(r.took)
	at := func(q float64) time.Duration {
		return r.took[int(q*float64(len(r.took)-1))].Round(time.Millisecond)
	}
	return fmt.Sprintf("ready again after %v (median), %v (99 %%), %v (longest of %d)", at(0.5), at(0.99), at(1), len(r.took))
}
