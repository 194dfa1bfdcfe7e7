package spec

import (
	"cmp"
	"maps"
	"math"
	"slices"
)

// HostImage is the image that every host has: its own system directories.
const HostImage = "host"

// DefaultHostname is the name of a box that was given none.
const DefaultHostname = "box"

// WithDefaults returns s with every field that means "the default" when it is
// empty or zero filled in. The ID stays empty: it is drawn by the engine. The
// result shares no memory with s, and applying it twice changes nothing.
func (s Spec) WithDefaults() Spec {
	s.Image = cmp.Or(s.Image, HostImage)
	s.Hostname = cmp.Or(s.Hostname, DefaultHostname)
	s.TmpSize = cmp.Or(s.TmpSize, DefaultTmpSize)
	if s.WritableRoot {
		s.UpperSize = cmp.Or(s.UpperSize, DefaultUpperSize)
	}
	s.Mounts = slices.Clone(s.Mounts)
	s.Labels = maps.Clone(s.Labels)
	s.Limits = s.Limits.WithDefaults()
	return s
}

// WithDefaults returns l with zero limits replaced by their defaults. FileSize
// has none: 0 becomes Unlimited.
func (l Limits) WithDefaults() Limits {
	l.Memory = cmp.Or(l.Memory, DefaultMemory)
	l.PIDs = cmp.Or(l.PIDs, DefaultPIDs)
	l.CPUs = cmp.Or(l.CPUs, DefaultCPUs)
	l.OpenFiles = cmp.Or(l.OpenFiles, DefaultOpenFiles)
	l.FileSize = cmp.Or(l.FileSize, Unlimited)
	return l
}

// Processors is how many of the host's processors a box is told of: enough for the time that it
// may use, and no more than there are.
func (l Limits) Processors(host int) int {
	if l.CPUs <= 0 {
		return host
	}
	const steps = 100_000 // of a processor that the kernel tells apart, see package cgroups
	return max(1, min(int(math.Ceil(math.Round(l.CPUs*steps)/steps)), host))
}

// Apply returns l with every field of change that is not zero put in its place.
func (l Limits) Apply(change Limits) Limits {
	l.Memory = cmp.Or(change.Memory, l.Memory)
	l.PIDs = cmp.Or(change.PIDs, l.PIDs)
	l.CPUs = cmp.Or(change.CPUs, l.CPUs)
	l.OpenFiles = cmp.Or(change.OpenFiles, l.OpenFiles)
	l.FileSize = cmp.Or(change.FileSize, l.FileSize)
	return l
}
