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

// The owner's IDs map to those of the box's user; every other ID keeps its distance from
// disk as the distance from base.
func TestUsersMap(t *testing.T) {
	for _, c := range []struct {
		user Owner
		want string
	}{
		{Owner{0, 0}, "uids 7 1000 1 501 1001 9 gids 8 1000 1 501 1001 9 "},
		{Owner{9, 4}, "uids 7 1009 1 500 1000 9 gids 8 1004 1 500 1000 4 505 1005 5 "},
	} {
		m := UsersMap(Owner{7, 8}, c.user, 1000, 500, 10)
		if m.String() != c.want {
			t.Errorf("%v: %q, want %q", c.user, m, c.want)
		}
		seen := map[uint32]bool{}
		for _, disk := range []uint32{7, 500, 501, 502, 503, 504, 505, 506, 507, 508, 509} {
			if host, ok := lookup(m.UIDs, disk); ok && (seen[host] || host < 1000 || host > 1009) {
				t.Errorf("%v: %d on disk is %d on the host", c.user, disk, host)
			} else if ok {
				seen[host] = true
			}
		}
		if len(seen) != 10 {
			t.Errorf("%v: %d ids of the box are mapped, want 10", c.user, len(seen))
		}
	}
}
