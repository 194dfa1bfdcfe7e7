package apitypes

import "github.com/boxd/boxd/engine/spec"

type (
	// Size is a number of bytes; see [spec.Size].
	Size = spec.Size
	// Duration is a length of time, in JSON a number of seconds; see [spec.Duration].
	Duration = spec.Duration
)
