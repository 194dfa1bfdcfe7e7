package native

import "github.com/boxd/boxd/engine"

// InRenewedSlot reports whether a command ran in a slot that had served others before.
func InRenewedSlot(p engine.Process) bool { return p.(*process).slot.stats.Renewals() > 0 }

// SlotName returns the name of the slot of a command, which no other has as long as the box exists.
func SlotName(p engine.Process) string { return p.(*process).slot.name }

// DropEndedSlots makes the next commands of a box run in new slots.
func DropEndedSlots(b engine.Box) {
	b.(*box).slots.dropEnded()
}

// RenewableSlots returns how many slots of ended commands a box keeps.
func RenewableSlots(b engine.Box) int {
	s := b.(*box).slots
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ended)
}
