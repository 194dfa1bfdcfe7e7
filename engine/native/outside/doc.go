// Package outside measures memory that the processes of a box make the kernel hold and
// that no memory cgroup is charged for: file locks, and sockets and their queues.
//
// Everything it counts is certainly of the box, and each byte is counted once: a figure is
// too low rather than too high. It reads files of /proc and changes nothing; what
// follows from the figures is decided in engine/native/launcher.
package outside

// Held is memory outside the charge of a box, in bytes.
type Held struct{ Locks, Sockets int64 }

// Total is the sum.
func (h Held) Total() int64 { return h.Locks + h.Sockets }
