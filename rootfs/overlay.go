package rootfs

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// fillEtc copies the shared /etc into the box's own tmpfs where it cannot be the lower
// layer of an overlay: before Linux 6.3 a tmpfs cannot be id-mapped.
func (b *builder) fillEtc(f *filler) error {
	m, err := b.idMapped(b.host.tree("etc"))
	if err == nil {
		b.etc = m
		return nil
	}
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	etc := f.into("etc")
	if etc.err != nil {
		return etc.err
	}
	defer etc.top.Close()
	src, err := linux.Reopen(b.host.tree("etc").root, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return err
	}
	defer src.Close()
	if err := copyAll(src, etc, perBoxEtc...); err != nil {
		return err
	}
	b.writePerBox(etc)
	return etc.err
}

func (b *builder) writePerBox(f *filler) {
	for _, name := range perBoxEtc {
		f.write(name, 0o644, perBoxFile(name, b.o))
	}
}

// overlayEtc mounts a writable view of the shared /etc, unless fillEtc has copied it.
// All in it is public.
func (b *builder) overlayEtc() error {
	if b.etc == nil {
		return nil
	}
	t := b.host.tree("etc")
	lower, err := b.beside("lower", t, b.etc)
	b.etc = nil
	if err != nil {
		return err
	}
	defer lower.Close()
	return b.overlayOn(t, "lower", b.writePerBox)
}

// overlay mounts a writable view of t: the host's public files below, as if the
// box owned them, and what the box changes on its tmpfs. The overlay works with
// the credentials of the process that mounts it, so the box needs no privilege.
func (b *builder) overlay(t tree) error {
	lower, err := b.publicLower(t)
	if err != nil {
		return err
	}
	defer lower.Close()
	if err := b.overlayOn(t, "public", func(*filler) {}); err != nil {
		return err
	}
	return b.submounts(t)
}

// overlayOn mounts an overlay at t's place: the layer of t that was attached as lower, and over
// it what fill makes and the box will change.
func (b *builder) overlayOn(t tree, lower string, fill func(upper *filler)) error {
	upper, err := b.layer("upper", t)
	if err != nil {
		return err
	}
	defer upper.Close()
	f := &filler{top: upper, uid: b.o.IDBase, gid: b.o.IDBase, kept: b.kept}
	if fill(f); f.err != nil {
		return f.err
	}
	work, err := b.layer("work", t)
	if err != nil {
		return err
	}
	defer work.Close()
	m, err := b.newOverlay(linux.Option{Key: "lowerdir", Value: layerName(lower, t)},
		linux.Option{Key: "upperdir", Value: layerName("upper", t)},
		linux.Option{Key: "workdir", Value: layerName("work", t)},
		// Renaming a directory of the host would fail with EXDEV otherwise, and mv
		// would copy it.
		linux.Option{Key: "redirect_dir", Value: "on"},
		// Nothing of it outlives a crash, so nothing need be synced (Linux 5.10).
		linux.Option{Key: "volatile"})
	if err != nil {
		return err
	}
	defer m.Close()
	return attach(m, b.box, t.name)
}

// newOverlay mounts an overlay whose layers are named relative to the directory of the Root.
// The box reads these names in /proc/self/mountinfo: they say nothing about the host.
func (b *builder) newOverlay(options ...linux.Option) (m *os.File, err error) {
	err = linux.OnThrowawayThread(func() error {
		if err := unix.Fchdir(int(b.top.Fd())); err != nil {
			return os.NewSyscallError("fchdir", err)
		}
		m, err = linux.NewMount("overlay", attrDefault, options...)
		return err
	})
	return m, err
}

// submounts shows what the host has mounted within t as it is, read-only: a layer
// of an overlay is one file system.
func (b *builder) submounts(t tree) error {
	subs, err := submounts(t.root)
	if err != nil {
		return err
	}
	for _, sub := range subs {
		if err := b.submount(t, sub); err != nil {
			return fmt.Errorf("%q, mounted within: %w", sub, err)
		}
	}
	return nil
}

func (b *builder) submount(t tree, sub string) error {
	dir, err := openDir(t.root, sub)
	if err != nil {
		return err
	}
	defer dir.Close()
	return cloneTo(dir, b.box, t.name+"/"+sub, 0)
}

// lower attaches an id-mapped clone of t beside the box's root, where the box
// cannot see it, and returns its root: before Linux 6.15 a layer of an overlay
// must be attached.
//
// It must not be a layer of the box's overlay: what belongs to root on the host
// belongs to the box's root here, private files too.
func (b *builder) lower(t tree) (*os.File, error) {
	m, err := b.idMapped(t)
	if errors.Is(err, unix.EINVAL) {
		return nil, fmt.Errorf("the host's file system of /%s cannot be id-mapped by this kernel, "+
			"which a writable root needs; run without it: %w", t.name, err)
	}
	if err != nil {
		return nil, err
	}
	return b.beside("lower", t, m)
}

// idMapped returns a detached clone of t in which what belongs to the host's users belongs
// to those of the box. A file system that cannot do so is EINVAL.
func (b *builder) idMapped(t tree) (*os.File, error) {
	m, err := linux.OpenTree(t.root, "", unix.OPEN_TREE_CLONE|unix.AT_EMPTY_PATH)
	if err != nil {
		return nil, err
	}
	attr := unix.MountAttr{Attr_set: unix.MOUNT_ATTR_IDMAP, Userns_fd: uint64(b.o.IDMapUserNS.Fd())}
	if err := linux.MountSetattr(m, false, attr); err != nil {
		m.Close()
		return nil, err
	}
	return m, nil
}

// beside attaches the mount m, which it takes, beside the box's root and returns
// it. Nobody but the launcher can search the directory.
func (b *builder) beside(kind string, t tree, m *os.File) (*os.File, error) {
	f := &filler{top: b.top}
	name := layerName(kind, t)
	f.mkdir(name, 0o700)
	f.do(func() error { return attach(m, b.top, name) })
	if f.err != nil {
		m.Close()
		return nil, f.err
	}
	return m, nil
}

// layer makes the directory of one layer of t, beside the box's root. Its owner
// and mode show as those of /usr and so on.
func (b *builder) layer(kind string, t tree) (*os.File, error) {
	f := &filler{top: b.top, uid: b.o.IDBase, gid: b.o.IDBase}
	name := layerName(kind, t)
	f.mkdir(name, 0o755)
	layer := f.into(name)
	return layer.top, layer.err
}

// layerName is where a layer of t is, beside the box's root.
func layerName(kind string, t tree) string {
	return kind + "-" + strings.ReplaceAll(t.name, "/", "-")
}
