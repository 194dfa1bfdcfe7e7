package mounts

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/boxd/boxd/internal/linux"
)

// IDRange maps Size IDs on disk, from Disk on, to host IDs from Host on.
type IDRange struct {
	Disk, Host, Size uint32
}

// IDMap translates the owners of files in a mount. An ID that is in no range appears as
// the overflow ID: such files cannot be changed, and no file can be given such an owner.
type IDMap struct {
	UIDs, GIDs []IDRange
}

// OwnerMap shows the files of one user and group as those of another: uid and gid own the
// directory on disk; hostUID and hostGID are the host IDs of the box's user.
func OwnerMap(uid, gid, hostUID, hostGID uint32) IDMap {
	return IDMap{
		UIDs: []IDRange{{uid, hostUID, 1}},
		GIDs: []IDRange{{gid, hostGID, 1}},
	}
}

// UsersMap maps all IDs of a box, whose IDs 0 to size-1 are the host IDs from base on. The
// box's user is the owner on disk, as in OwnerMap; any other ID n of the box is disk+n on disk.
func UsersMap(owner, user Owner, base, disk, size uint32) IDMap {
	split := func(owner, user uint32) []IDRange {
		all := []IDRange{{owner, base + user, 1}, {disk, base, user}, {disk + user + 1, base + user + 1, size - user - 1}}
		return slices.DeleteFunc(all, func(r IDRange) bool { return r.Size == 0 })
	}
	return IDMap{UIDs: split(uint32(owner.UID), uint32(user.UID)), GIDs: split(uint32(owner.GID), uint32(user.GID))}
}

// String returns equal strings for equal maps, so it can serve as the key of a cache.
func (m IDMap) String() string {
	return strings.ReplaceAll("uids "+mapText(m.UIDs)+"gids "+mapText(m.GIDs), "\n", " ")
}

// UserNS creates a user namespace that carries m for [Source.Tree]. No process ever runs in
// it. The caller owns it and may use it for any number of trees. Creating it takes about
// 0.1 ms, so it is worth keeping for the next mount with the same map.
func UserNS(m IDMap) (*os.File, error) {
	ns, err := linux.NewUserNS(mapText(m.UIDs), mapText(m.GIDs))
	if err != nil {
		return nil, fmt.Errorf("id map %q: %w", m, err)
	}
	return ns, nil
}

// mapText returns the content of uid_map. For mount_setattr(2), the first column is the ID
// on disk; user_namespaces(7) calls it the ID inside the namespace.
func mapText(ranges []IDRange) string {
	var b strings.Builder
	for _, r := range ranges {
		fmt.Fprintf(&b, "%d %d %d\n", r.Disk, r.Host, r.Size)
	}
	return b.String()
}

// lookup returns the host ID for an ID on disk.
func lookup(ranges []IDRange, id uint32) (host uint32, ok bool) {
	for _, r := range ranges {
		if id >= r.Disk && id-r.Disk < r.Size {
			return r.Host + (id - r.Disk), true
		}
	}
	return 0, false
}
