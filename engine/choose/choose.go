// Package choose decides which engine builds a box: the first of an order that offers the isolation
// and works on this host. It builds nothing itself, and what a caller may ask for is decided elsewhere.
package choose

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/oneline"
)

// Request says which engines may build a box, and behind which wall.
type Request struct {
	// Order lists the engines, best first.
	Order []string
	// Walls are the isolations that the box may have, best first. All engines are tried with the
	// first one before any is tried with the next.
	Walls []string
}

// A Choice is what a box was built with.
type Choice struct {
	Engine    string `json:"engine,omitempty"`
	Isolation string `json:"isolation,omitempty"`
	// Reason says in one line why it was this engine.
	Reason string `json:"engine_reason,omitempty"`
	// Degraded says in one line why the box does not have the first of Request.Walls; empty: it has.
	Degraded string `json:"degraded,omitempty"`
}

// keep is how long the state of an engine is believed. So an engine that hangs delays few of the boxes
// that it may build, and none of other engines; and one that comes back is used again soon.
const keep = 5 * time.Second

// Chooser builds boxes, of type B, with the engines of an [engine.Engine] or [engine.Service]. It is safe
// for concurrent use.
type Chooser[B engine.Box] struct {
	build    func(context.Context, engine.Spec) (B, error)
	choosing engine.Choosing // nil: there is only the native engine

	mu    sync.Mutex
	known map[pair]*answer
}

// pair is an engine with an isolation.
type pair struct{ engine, isolation string }

// answer is what the service said of a pair.
type answer struct {
	turn chan struct{} // holds a token while somebody asks

	// Guarded by Chooser.mu.
	state engine.EngineState
	asked time.Time // when state was asked for; zero: never
}

// New returns a Chooser that builds boxes with the method Create of an [engine.Engine] or
// [engine.Service] with more than one engine if that is an [engine.Choosing].
func New[B engine.Box](of interface {
	Create(context.Context, engine.Spec) (B, error)
}) *Chooser[B] {
	choosing, _ := of.(engine.Choosing)
	return &Chooser[B]{build: of.Create, choosing: choosing, known: map[pair]*answer{}}
}

// Create builds a box of b, whose Engine and Isolation it sets. An engine that cannot build it is
// passed over; any other error is that of Create and ends the search.
//
// engine.ErrNoEngine: none of them can, and nothing was built. The text has the reason of each.
func (c *Chooser[B]) Create(ctx context.Context, b engine.Spec, r Request) (B, Choice, error) {
	begun := time.Now()
	box, made, err := c.create(ctx, b, r, begun, begun.Add(-keep))
	if errors.Is(err, errStale) { // an engine may work again
		box, made, err = c.create(ctx, b, r, begun, begun)
	}
	return box, made, err
}

// errStale: no engine can, according to answers from before the call.
var errStale = errors.New("the states of the engines are old")

// create is Create, which began at begun, with states of engines that were asked for after since.
func (c *Chooser[B]) create(ctx context.Context, b engine.Spec, r Request, begun, since time.Time) (B, Choice, error) {
	var none B
	var passed []string // reasons of engines that were passed over
	better, stale := 0, false
	for _, wall := range r.Walls {
		better = len(passed) // that many with a better wall
		for _, name := range r.Order {
			reason, asked, err := c.whyNot(ctx, name, wall, since)
			if err != nil {
				return none, Choice{}, err
			}
			if reason == "" {
				b.Engine, b.Isolation = name, wall
				box, err := c.build(ctx, b)
				if err == nil {
					return box, choice(r, b, passed[:better], passed[better:]), nil
				}
				if !errors.Is(err, engine.ErrNoEngine) {
					return none, Choice{}, err
				}
				reason = oneline.Error(err)
				c.note(pair{name, wall}, reason)
			} else if !asked.IsZero() && asked.Before(begun) {
				stale = true
			}
			passed = append(passed, name+": "+reason)
		}
	}
	if stale {
		return none, Choice{}, errStale
	}
	return none, Choice{}, noEngine(fmt.Sprintf("no engine of %q can build a box with isolation %s: %s",
		r.Order, strings.Join(r.Walls, " or "), strings.Join(passed, "; ")))
}

// noEngine is engine.ErrNoEngine for all engines. Its text does not repeat that of the reasons.
type noEngine string

func (n noEngine) Error() string        { return string(n) }
func (n noEngine) Is(target error) bool { return target == engine.ErrNoEngine }

// choice describes a box: above and passed are the reasons of the engines that were passed over, for a
// better wall and for this one.
func choice(r Request, b engine.Spec, above, passed []string) Choice {
	made := Choice{Engine: b.Engine, Isolation: b.Isolation, Reason: "the first of " + strings.Join(r.Order, ", ")}
	switch {
	case len(passed) > 0:
		made.Reason = strings.Join(passed, "; ")
	case len(r.Order) == 1:
		made.Reason = "the only engine that may build it"
	}
	if len(above) > 0 {
		made.Degraded = fmt.Sprintf("isolation is %s, not %s: %s", b.Isolation, r.Walls[0], strings.Join(above, "; "))
	}
	return made
}

// whyNot says in one line why an engine cannot build boxes with isolation; empty: it may. asked is when
// that was asked for, zero if it holds for good.
func (c *Chooser[B]) whyNot(ctx context.Context, name, isolation string, since time.Time) (reason string, asked time.Time, err error) {
	switch {
	case !spec.Offers(name, isolation):
		return "has no isolation " + isolation, asked, nil
	case name == spec.EngineNative: // the launcher itself, so a native box waits for no answer
		return "", asked, nil
	case c.choosing == nil:
		return "this launcher does not know it", asked, nil
	}
	s, asked, err := c.ask(ctx, pair{name, isolation}, since)
	return s.Reason, asked, err
}

// States lists what the service can build boxes with, of the engines in order, as it was at most 5 s ago.
func (c *Chooser[B]) States(ctx context.Context, order []string) ([]engine.EngineState, error) {
	var states []engine.EngineState
	for _, name := range order {
		for _, isolation := range spec.Isolations {
			if spec.Offers(name, isolation) {
				states = append(states, engine.EngineState{Engine: name, Isolation: isolation})
			}
		}
	}
	errs := make([]error, len(states))
	var wg sync.WaitGroup
	for i, s := range states {
		switch {
		case c.choosing != nil:
			wg.Go(func() { states[i], _, errs[i] = c.ask(ctx, pair{s.Engine, s.Isolation}, time.Now().Add(-keep)) })
		case s.Engine != spec.EngineNative:
			states[i].Reason = "this launcher does not know it"
		}
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return nil, err // that of one question: the others have most likely failed as well
		}
	}
	return states, nil
}

// ask returns the state of p and when it was asked for, after since.
func (c *Chooser[B]) ask(ctx context.Context, p pair, since time.Time) (engine.EngineState, time.Time, error) {
	c.mu.Lock()
	a := c.known[p]
	if a == nil {
		a = &answer{turn: make(chan struct{}, 1)}
		c.known[p] = a
	}
	c.mu.Unlock()
	select { // one call asks the service, and the others wait for its answer
	case a.turn <- struct{}{}:
	case <-ctx.Done():
		return engine.EngineState{}, time.Time{}, fmt.Errorf("asking for engine %q: %w", p.engine, context.Cause(ctx))
	}
	defer func() { <-a.turn }()
	c.mu.Lock()
	state, asked := a.state, a.asked
	c.mu.Unlock()
	if !asked.Before(since) {
		return state, asked, nil
	}
	asked = time.Now()
	states, err := c.choosing.Engines(ctx, p.engine, p.isolation)
	if err != nil {
		return engine.EngineState{}, time.Time{}, err
	}
	state = engine.EngineState{Engine: p.engine, Isolation: p.isolation, Reason: "this launcher does not know it with isolation " + p.isolation}
	if at := slices.IndexFunc(states, func(s engine.EngineState) bool { return s.Engine == p.engine && s.Isolation == p.isolation }); at >= 0 {
		state = states[at]
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	a.state, a.asked = state, asked
	return state, asked, nil
}

// note keeps, until the next answer, that an engine has just refused to build a box.
func (c *Chooser[B]) note(p pair, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a := c.known[p]; a != nil {
		a.state.Reason = reason
	}
}
