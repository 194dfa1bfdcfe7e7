package mounts

import (
	"testing"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/testutil"
)

// BenchmarkOpen measures the resolution of a source with all its checks.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	for b.Loop() {
		s, err := Open(spec.Mount{Source: dir, Target: "/t"}, DefaultDeny)
		if err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}

func BenchmarkUserNS(b *testing.B) {
	testutil.RequireRoot(b)
	m := OwnerMap(owner, owner, boxBase, boxBase)
	for b.Loop() {
		ns, err := UserNS(m)
		if err != nil {
			b.Fatal(err)
		}
		ns.Close()
	}
}

// BenchmarkTreeAttach measures a live mount of an opened source with a cached map, without
// detaching it.
func BenchmarkTreeAttach(b *testing.B) {
	testutil.RequireRoot(b)
	o, box := mappedOptions(b), startBox(b, "/data")
	s, err := Open(spec.Mount{Source: ownedDir(b), Target: "/data"}, DefaultDeny)
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	for b.Loop() {
		tree, err := s.Tree(o)
		if err != nil {
			b.Fatal(err)
		}
		id, err := Attach(box.NS, tree, "/data", nil)
		tree.Close()
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if err := Detach(box.NS, "/data", id); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
