// Package choose decides which engine builds a box: the first of an order that offers the isolation
// and works on this host. It builds nothing itself, and what a caller may ask for is decided elsewhere.
package choose

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
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

// keep is how long the list of engines is believed. So an engine that hangs delays one box and not all
// of them, and one that comes back is used again soon.
const keep = 5 * time.Second

// Chooser builds boxes, of type B, with the engines of an [engine.Engine] or [engine.Service]. It is safe
// for concurrent use.
type Chooser[B engine.Box] struct {
	build    func(context.Context, engine.Spec) (B, error)
	choosing engine.Choosing // nil: there is only the native engine
	turn     chan struct{}   // holds a token while somebody uses what follows
	states   []engine.EngineState
	asked    time.Time // when the answer in states was asked for; zero: never
}

// New returns a Chooser that builds boxes with the method Create of an [engine.Engine] or
// [engine.Service] with more than one engine if that is an [engine.Choosing].
func New[B engine.Box](of interface {
	Create(context.Context, engine.Spec) (B, error)
}) *Chooser[B] {
	choosing, _ := of.(engine.Choosing)
	return &Chooser[B]{build: of.Create, choosing: choosing, turn: make(chan struct{}, 1)}
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

// errStale: no engine can, according to a list from before the call.
var errStale = errors.New("the list of engines is old")

// create is Create, which began at begun, with a list of engines that was asked for after since.
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
				c.note(name, wall, reason)
			} else if !asked.IsZero() && asked.Before(begun) {
				stale = true
			}
			passed = append(passed, name+": "+reason)
		}
	}
	err := engine.ErrNoEngine
	if stale {
		err = errStale
	}
	return none, Choice{}, fmt.Errorf("no engine of %q can build a box with isolation %s: %s: %w",
		r.Order, strings.Join(r.Walls, " or "), strings.Join(passed, "; "), err)
}

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
	case name == spec.EngineNative: // the launcher itself, so a native box does not wait for a list
		return "", asked, nil
	case c.choosing == nil:
		return "this launcher does not know it", asked, nil
	}
	states, asked, err := c.list(ctx, since)
	if err != nil {
		return "", asked, err
	}
	if at := find(states, name, isolation); at >= 0 {
		return states[at].Reason, asked, nil
	}
	return "this launcher does not know it with isolation " + isolation, asked, nil
}

// States lists what the service can build boxes with, of the engines in order, as it was at most 5 s ago.
func (c *Chooser[B]) States(ctx context.Context, order []string) ([]engine.EngineState, error) {
	all := []engine.EngineState{{Engine: spec.EngineNative, Isolation: spec.IsolationNamespaces}}
	if c.choosing != nil {
		var err error
		if all, _, err = c.list(ctx, time.Now().Add(-keep)); err != nil {
			return nil, err
		}
	}
	var states []engine.EngineState
	for _, name := range order {
		for _, isolation := range spec.Isolations {
			if at := find(all, name, isolation); at >= 0 {
				states = append(states, all[at])
			} else if spec.Offers(name, isolation) {
				states = append(states, engine.EngineState{Engine: name, Isolation: isolation, Reason: "this launcher does not know it"})
			}
		}
	}
	return states, nil
}

// list returns the states of all engines, and when they were asked for, after since.
func (c *Chooser[B]) list(ctx context.Context, since time.Time) ([]engine.EngineState, time.Time, error) {
	select { // one call asks the service, and the others wait for its answer
	case c.turn <- struct{}{}:
	case <-ctx.Done():
		return nil, time.Time{}, fmt.Errorf("listing engines: %w", context.Cause(ctx))
	}
	defer func() { <-c.turn }()
	if c.asked.Before(since) {
		now := time.Now()
		states, err := c.choosing.Engines(ctx)
		if err != nil {
			return nil, time.Time{}, err
		}
		c.states, c.asked = states, now
	}
	return c.states, c.asked, nil
}

// note keeps, until the next list, that an engine has just refused to build a box.
func (c *Chooser[B]) note(name, isolation, reason string) {
	c.turn <- struct{}{}
	defer func() { <-c.turn }()
	if at := find(c.states, name, isolation); at >= 0 {
		c.states = slices.Clone(c.states) // others read the list
		c.states[at].Reason = reason
	}
}

func find(states []engine.EngineState, name, isolation string) int {
	return slices.IndexFunc(states, func(s engine.EngineState) bool { return s.Engine == name && s.Isolation == isolation })
}
