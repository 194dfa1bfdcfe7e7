package cgroups

import "testing"

var benchLimits = Limits{Memory: 256 * mib, PIDs: 64, CPUs: 1}

func BenchmarkCreateRemove(b *testing.B) {
	h := testHost(b)
	for b.Loop() {
		g, err := h.Create(testID(), Owner{}, benchLimits)
		check(b, err)
		check(b, g.Remove(b.Context()))
	}
}

func BenchmarkSlot(b *testing.B) {
	box := newBox(b, benchLimits)
	for b.Loop() {
		s, err := box.NewSlot()
		check(b, err)
		check(b, s.Remove(b.Context()))
	}
}

func BenchmarkStatsRead(b *testing.B) {
	box := newBox(b, benchLimits)
	_, stats := box.slot(b)
	for b.Loop() {
		_, err := stats.Read()
		check(b, err)
	}
}

func BenchmarkPopulated(b *testing.B) {
	box := newBox(b, benchLimits)
	_, stats := box.slot(b)
	for b.Loop() {
		_, err := stats.Populated()
		check(b, err)
	}
}
