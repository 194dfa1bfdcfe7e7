package engine

import "context"

// Choosing is a [Service] that builds boxes with more than one engine, as [Spec].Engine and
// [Spec].Isolation say. Volumes, layers, identities and the boxes themselves are in one place
// whichever engine builds them. It is safe for concurrent use.
type Choosing interface {
	// Engines lists what the service can build boxes with, one element for each pair of engine
	// and isolation that it knows, in the order of spec.Engines and then spec.Isolations. It lists
	// those of one engine, or with one isolation; an empty word stands for all. It looks at the
	// host now; an engine that does not answer is unavailable after some 5 s, for which the others
	// in the list wait.
	Engines(ctx context.Context, engine, isolation string) ([]EngineState, error)
}

// EngineState says whether boxes can be built with an engine and an isolation.
type EngineState struct {
	Engine    string `json:"engine"`
	Isolation string `json:"isolation"`
	// Runtime is the program that makes the boxes, with its version, such as "runc 1.1.5";
	// empty if it is not known.
	Runtime string `json:"runtime,omitempty"`
	// Reason says in one line why the engine is not available, and what to do; empty if it is.
	Reason string `json:"reason,omitempty"`
}

// Available reports whether boxes can be built.
func (s EngineState) Available() bool { return s.Reason == "" }
