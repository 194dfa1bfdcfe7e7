package launcher

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
)

// Host ids of boxes. The ranges start at 0x70000000, above what systemd-nspawn
// (up to 0x6fffffff, systemd UIDS-GIDS.md) and the usual /etc/subuid entries use,
// and end below 2^31, from where on some tools take ids for negative.
const (
	idBase   = 0x70000000
	idRange  = 65536
	idRanges = 4094
)

// sharedBase is the id on disk of a box's user 0 in mounts with [spec.Mount.Users]. The
// range is leased to no box, and lies below the ids of daemons (0x7fff0000).
const sharedBase = idBase + idRanges*idRange

// isShared reports whether id on disk stands for a user of a box other than the session's.
func isShared(id uint32) bool { return id >= sharedBase && id < sharedBase+idRange }

// idLease is a range of host ids that belongs to one live box.
type idLease struct {
	Base int
	path string
}

// leaseIDs takes a free range. The lease is a symlink, because that is created
// atomically together with its owner's name. A sweep removes the leases of dead
// owners.
func leaseIDs(dir, owner string) (*idLease, error) {
	first := rand.IntN(idRanges)
	for i := range idRanges {
		n := (first + i) % idRanges
		path := filepath.Join(dir, strconv.Itoa(n))
		err := os.Symlink(owner, path)
		switch {
		case err == nil:
			return &idLease{Base: idBase + n*idRange, path: path}, nil
		case !errors.Is(err, fs.ErrExist):
			return nil, fmt.Errorf("leasing id range: %w", err)
		}
	}
	return nil, fmt.Errorf("leasing id range: all %d are in use", idRanges)
}

func (l *idLease) release() error { return os.Remove(l.path) }

// releaseLeases removes the leases whose owners, named as by instance.owner, are dead.
func releaseLeases(dir string, dead func(owner string) bool) error {
	leases, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, l := range leases {
		path := filepath.Join(dir, l.Name())
		owner, err := os.Readlink(path)
		if err != nil || !dead(owner) {
			continue
		}
		if err := os.Remove(path); err != nil {
			return err
		}
	}
	return nil
}
