package mounts

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/boxd/boxd/internal/linux"
)

// IDRange maps Size ids as they are on disk, from Disk on, to host ids from
// Host on.
type IDRange struct {
	Disk, Host, Size uint32
}

// IDMap says whose files a mount shows as whose. An id that is in no range
// appears as the overflow id and can be neither used nor written.
type IDMap struct {
	UIDs, GIDs []IDRange
}

// OwnerMap shows the files of one user and group as those of another: uid and
// gid own the directory on disk, hostUID and hostGID are the box user's ids on
// the host.
func OwnerMap(uid, gid, hostUID, hostGID uint32) IDMap {
	return IDMap{
		UIDs: []IDRange{{uid, hostUID, 1}},
		GIDs: []IDRange{{gid, hostGID, 1}},
	}
}

// UsersMap is OwnerMap for uid:gid of a box whose ids are size host ids from base on, and
// shows other files too: the id n of the box is the id disk+n on disk. Only the ids of the
// owner are not in that range.
func UsersMap(owner, user Owner, base, disk, size uint32) IDMap {
	split := func(owner, user uint32) []IDRange {
		all := []IDRange{{owner, base + user, 1}, {disk, base, user}, {disk + user + 1, base + user + 1, size - user - 1}}
		return slices.DeleteFunc(all, func(r IDRange) bool { return r.Size == 0 })
	}
	return IDMap{UIDs: split(uint32(owner.UID), uint32(user.UID)), GIDs: split(uint32(owner.GID), uint32(user.GID))}
}

// String is the same for equal maps, and can serve as the key of a cache.
func (m IDMap) String() string {
	return strings.ReplaceAll("uids "+mapText(m.UIDs)+"gids "+mapText(m.GIDs), "\n", " ")
}

// UserNS makes a user namespace that carries m for [Source.Tree]. Nothing ever
// runs in it. It costs about 0.1 ms; the caller owns it and may use it for any
// number of trees, so it is worth keeping for the next mount with the same map.
func UserNS(m IDMap) (*os.File, error) {
	ns, err := linux.NewUserNS(mapText(m.UIDs), mapText(m.GIDs))
	if err != nil {
		return nil, fmt.Errorf("id map %q: %w", m, err)
	}
	return ns, nil
}

// mapText is the content of uid_map. For mount_setattr(2) the first column is
// the id on disk, where the manual of the file says "inside the namespace".
func mapText(ranges []IDRange) string {
	var b strings.Builder
	for _, r := range ranges {
		fmt.Fprintf(&b, "%d %d %d\n", r.Disk, r.Host, r.Size)
	}
	return b.String()
}

// lookup returns the host id of an id on disk.
func lookup(ranges []IDRange, id uint32) (host uint32, ok bool) {
	for _, r := range ranges {
		if id >= r.Disk && id-r.Disk < r.Size {
			return r.Host + (id - r.Disk), true
		}
	}
	return 0, false
}
