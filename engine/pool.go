package engine

import "context"

// Pooled is an engine that builds boxes ahead of time, as many as the demand of the last minutes asks
// for, while the processors are idle. A Create takes one if it can become exactly the box of its Spec, and
// otherwise builds one. A box of the pool has never served anybody, and is the same as any other.
type Pooled interface {
	// Pool describes the pool.
	Pool(ctx context.Context) (PoolState, error)
}

// MaxPool is the largest number of boxes that an engine builds ahead of time.
const MaxPool = 64

// PoolState describes the boxes that an engine has built ahead of time.
type PoolState struct {
	// Limit is the most that there may be, 0 without a pool. Wanted is how many the demand of the last
	// minutes asks for. Ready is how many there are.
	Limit, Wanted, Ready int
	// Hits counts the boxes that were taken from the pool since the engine started, and Misses those that were built on
	// request, by reason: PoolEmpty, PoolSpec and PoolBroken.
	Hits   int64
	Misses map[string]int64 `json:",omitempty"`
}

// Reasons for which a Create gets no box of the pool.
const (
	PoolEmpty  = "empty"  // there was none of this kind
	PoolSpec   = "spec"   // there is never one for such a Spec
	PoolBroken = "broken" // the box had ended, or could not be completed
)
