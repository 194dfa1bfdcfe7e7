package mounts

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/testutil"
)

func TestIDMapText(t *testing.T) {
	m := OwnerMap(1000, 100, 70000, 70001)
	if got := m.String(); got != "uids 1000 70000 1 gids 100 70001 1 " {
		t.Errorf("String = %q", got)
	}
	two := IDMap{UIDs: []IDRange{{0, 5, 2}, {9, 20, 1}}}
	if got := mapText(two.UIDs); got != "0 5 2\n9 20 1\n" {
		t.Errorf("mapText = %q", got)
	}
}

func TestLookup(t *testing.T) {
	ranges := []IDRange{{0, 100, 2}, {10, 7, 1}, {1<<32 - 2, 50, 1}}
	for _, c := range []struct {
		id, host uint32
		ok       bool
	}{
		{0, 100, true}, {1, 101, true}, {2, 0, false}, {10, 7, true}, {11, 0, false},
		{1<<32 - 2, 50, true}, {1<<32 - 1, 0, false},
	} {
		if host, ok := lookup(ranges, c.id); host != c.host || ok != c.ok {
			t.Errorf("lookup(%d) = %d, %v", c.id, host, ok)
		}
	}
}

func TestUserNS(t *testing.T) {
	testutil.RequireRoot(t)
	ns, err := UserNS(OwnerMap(owner, owner, boxBase, boxBase))
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	kind, err := unix.IoctlRetInt(int(ns.Fd()), unix.NS_GET_NSTYPE)
	if err != nil || kind != unix.CLONE_NEWUSER {
		t.Errorf("namespace of type %#x, %v", kind, err)
	}
}

func TestUserNSRefusesBadMaps(t *testing.T) {
	testutil.RequireRoot(t)
	for _, ranges := range [][]IDRange{nil, {{0, 0, 0}}, {{0, 10, 5}, {3, 20, 1}}} {
		if ns, err := UserNS(IDMap{UIDs: ranges, GIDs: ranges}); err == nil {
			ns.Close()
			t.Errorf("%v was accepted", ranges)
		} else if !strings.Contains(err.Error(), "id map") {
			t.Errorf("%v: %v", ranges, err)
		}
	}
}
