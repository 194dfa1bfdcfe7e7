package launcher

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/mounts"
	"github.com/boxd/boxd/rootfs"
)

// The ways into a running box. A launcher that ends with its boxes holds their
// descriptors from the time when it built them. One that runs as a service goes in
// through PID 1 each time: so an idle box costs it few descriptors, and the launcher
// after it, which has none, does exactly the same.

// live opens the root of a box of a service. The caller closes it.
func (b *box) live() (*rootfs.Live, error) {
	l, err := rootfs.OpenLive(b.pid)
	if err != nil {
		return nil, err
	}
	if err := b.stillThere(); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

// withNS runs fn with the box's mount namespace.
func (b *box) withNS(fn func(mounts.NS) error) error {
	if b.root != nil {
		return fn(b.ns)
	}
	ns, err := mounts.OpenNS(b.pid)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := b.stillThere(); err != nil {
		return err
	}
	return fn(ns)
}

// makePoint makes a mount point in the box: inside another mount as the user of the
// box would.
func (b *box) makePoint(ns mounts.NS, target string, dir bool) error {
	user := mounts.Owner{UID: b.lease.Base + b.spec.User.UID, GID: b.lease.Base + b.spec.User.GID}
	if inner, err := mounts.MakeInnerPoint(ns, target, dir, user); inner || err != nil {
		return err
	}
	if b.root != nil {
		return mounts.MakeMountPoint(b.root.Skeleton(), target, dir)
	}
	l, err := b.live()
	if err != nil {
		return err
	}
	defer l.Close()
	skeleton, err := l.Skeleton()
	if err != nil {
		return err
	}
	defer skeleton.Close()
	return mounts.MakeMountPoint(skeleton, target, dir)
}

// openPTY opens a terminal of the box.
func (b *box) openPTY(m rpc.PTY) (master, slave *os.File, err error) {
	if b.root != nil {
		return b.root.OpenPTY(m.User.UID, m.User.GID, m.Size.Rows, m.Size.Cols)
	}
	l, err := b.live()
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	return l.OpenPTY(b.lease.Base+m.User.UID, b.lease.Base+m.User.GID, m.Size.Rows, m.Size.Cols)
}

// openVolumes returns descriptors that show how full the box is, and what they are.
func (b *box) openVolumes() (list []rpc.Volume, files []*os.File, err error) {
	if b.root != nil {
		for _, v := range b.root.Volumes() {
			dir, err := linux.Dup(v.File)
			if err != nil {
				return list, files, err
			}
			list, files = append(list, rpc.Volume{Path: v.Path, Size: v.Size}), append(files, dir)
		}
		return list, files, nil
	}
	l, err := b.live()
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	for _, v := range b.record.Volumes {
		dir, err := l.Volume(v.Path, v.Device)
		if err != nil {
			// The box has moved it away: then nothing is told of it.
			fmt.Fprintf(os.Stderr, "boxd-init: box %q: %v\n", b.id, err)
			continue
		}
		list, files = append(list, rpc.Volume{Path: v.Path, Size: v.Size}), append(files, dir)
	}
	return list, files, nil
}

// maxVolumes is how many volumes of a box are watched: each costs a descriptor.
const maxVolumes = 64

// slack is what a file system of limit bytes on a disk may have left when it refuses a write:
// all that one write brings into the page cache at once, which is up to 2 MiB since ext4 has
// large folios (Linux 6.16; xfs since 5.18). It is less for a small one, of which that
// would be most; a writer of large pieces is not recognised there.
func slack(limit int64) int64 {
	if limit < 0 {
		return 0
	}
	return min(2<<20, max(limit/4, 64<<10))
}

// openLimited is openVolumes for mounts of limited size at the targets that are asked for,
// at most most. One that cannot be opened is left out: nothing is told of it then.
func (b *box) openLimited(most int, at func(target string) bool) (list []rpc.Volume, files []*os.File) {
	for _, m := range b.limited() {
		if len(list) == most {
			break
		}
		if !at(m.Target) {
			continue
		}
		err := b.withNS(func(ns mounts.NS) error {
			f, err := mounts.OpenAttached(ns, m.Target, m.ID)
			if err == nil {
				list, files = append(list, rpc.Volume{Path: m.Target, Size: m.Limit, Slack: slack(m.Limit)}), append(files, f)
			}
			return err
		})
		if err != nil {
			fmt.Fprintf(os.Stderr, "boxd-init: box %q: %v\n", b.id, err)
		}
	}
	return list, files
}

// limited are the mounts of limited size that the box can fill, by target; of several
// of one volume the first.
func (b *box) limited() []mounted {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []mounted
	for _, m := range b.mounted {
		if m.Limit != 0 && m.ID != pending {
			list = append(list, m)
		}
	}
	slices.SortFunc(list, func(a, b mounted) int { return strings.Compare(a.Target, b.Target) })
	seen := map[string]bool{}
	return slices.DeleteFunc(list, func(m mounted) bool {
		again := m.Volume != "" && seen[m.Volume]
		seen[m.Volume] = true
		return again
	})
}

// settle makes a new box one of a service: what the next launcher must know is on
// record, and what this one does not need any more is let go.
func (b *box) settle() error {
	r := &boxRecord{
		Version: recordVersion, ID: b.id, Spec: b.spec, Limits: b.spec.Limits,
		PID: b.pid, IDBase: b.lease.Base, Cgroup: b.group.ID, Degraded: b.degraded(),
	}
	var err, berr error
	r.Start, err = linux.StartTime(b.pid)
	r.BootID, berr = linux.BootID()
	if err := errors.Join(err, berr, b.stillThere()); err != nil {
		return fmt.Errorf("recording box: %w", err)
	}
	for _, v := range b.root.Volumes() {
		dev, err := rootfs.DeviceOf(v.File)
		if err != nil {
			return fmt.Errorf("recording box: %w", err)
		}
		r.Volumes = append(r.Volumes, volume{Path: v.Path, Size: v.Size, Device: dev})
	}
	b.mu.Lock()
	b.record = r
	b.mu.Unlock()
	if err := b.save(); err != nil {
		return err
	}
	err = b.root.Close()
	b.root = nil
	_ = b.ns.Close()
	b.control.Close() // the agent has no lifeline: nobody speaks there any more
	b.mu.Lock()
	defer b.mu.Unlock()
	linux.CloseAll(slices.Collect(maps.Values(b.userNS)))
	clear(b.userNS)
	return err
}

func (b *box) degraded() (list []string) {
	for _, d := range b.group.Degraded {
		list = append(list, d.Error())
	}
	return list
}
