// Package outside measures memory that the processes of a box make the kernel hold and
// that no memory cgroup is charged for: file locks, and sockets and their queues.
//
// It counts only memory that certainly belongs to the box, and each byte once, so a figure
// is too low rather than too high. It reads files of /proc and changes nothing; package
// engine/native/launcher acts on the figures.
package outside

// Held is memory outside the charge of a box, in bytes.
type Held struct{ Locks, Sockets int64 }

// Total is the sum.
func (h Held) Total() int64 { return h.Locks + h.Sockets }
