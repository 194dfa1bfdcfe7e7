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

// Access to a running box. A launcher whose boxes end with it holds descriptors from when
// it built them. A service reaches a box through PID 1 each time, so an idle box costs it
// few descriptors, and its successor, which has none of them, works in the same way.

// live opens the root of a service's box. The caller closes it.
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

// makePoint makes a mount point in the box. Inside another mount it does so with the rights
// of the box's user.
func (b *box) makePoint(ns mounts.NS, target string, dir bool) error {
	user := mounts.Owner{UID: b.lease.Base + b.spec.User.UID, GID: b.lease.Base + b.spec.User.GID}
	if inner, err := mounts.MakeInnerPoint(ns, target, dir, user); inner || err != nil {
		return err
	}
	return b.withDir((*rootfs.Root).Skeleton, (*rootfs.Live).Skeleton, func(skeleton *os.File) error {
		return mounts.MakeMountPoint(skeleton, target, dir)
	})
}

// withDir runs fn with a directory of the box's root: the one that held returns if the
// launcher holds the root, otherwise the one that open opens.
func (b *box) withDir(held func(*rootfs.Root) *os.File, open func(*rootfs.Live) (*os.File, error), fn func(dir *os.File) error) error {
	if b.root != nil {
		return fn(held(b.root))
	}
	l, err := b.live()
	if err != nil {
		return err
	}
	defer l.Close()
	dir, err := open(l)
	if err != nil {
		return err
	}
	defer dir.Close()
	return fn(dir)
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

// openVolumes opens the box's sized file systems, for clients to watch how full they are.
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
			// The box has moved it away: the client cannot watch it.
			fmt.Fprintf(os.Stderr, "boxd-init: box %q: %v\n", b.id, err)
			continue
		}
		list, files = append(list, rpc.Volume{Path: v.Path, Size: v.Size}), append(files, dir)
	}
	return list, files, nil
}

// maxVolumes is how many volumes of a box a client can watch: each costs a descriptor.
const maxVolumes = 64

// slack is how many bytes may be free on a disk file system of limit bytes when it refuses a
// write. The kernel brings up to 2 MiB into the page cache at once since ext4 has large folios
// (Linux 6.16; xfs since 5.18), and refuses them as a whole. For a small file system slack is
// less, since 2 MiB would be most of it; there, a large write that fails goes unnoticed.
func slack(limit int64) int64 {
	if limit < 0 {
		return 0
	}
	return min(2<<20, max(limit/4, 64<<10))
}

// openLimited is openVolumes for at most the given number of mounts of limited size, at
// targets that at selects. It leaves out a mount that it cannot open.
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

// limited returns the mounts of limited size that the box can fill, sorted by target. Of
// several mounts of one volume it returns the first.
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

// settle turns a new box into a box of the service. It writes the record that the next
// launcher reads, and closes the descriptors that this one no longer needs.
func (b *box) settle() error {
	r := &boxRecord{
		Version: recordVersion, ID: b.id, Spec: b.spec, Limits: b.spec.Limits,
		PID: b.pid, IDBase: b.lease.Base, Cgroup: b.group.ID, Sandbox: b.sandbox, Degraded: b.degraded(),
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
	b.control.Close() // not a lifeline, and not used any more
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
