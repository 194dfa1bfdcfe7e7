package rootfs

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// fillEtc copies the shared /etc to the box's own tmpfs if it cannot be the lower layer of an
// overlay: before Linux 6.3 a tmpfs cannot be ID-mapped.
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
	b.writePerBox(etc, "")
	return etc.err
}

// overlayEtc mounts a writable view of the shared /etc, unless fillEtc has copied it.
// Everything in it is public.
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
	return b.overlayOn(t, "lower", func(upper *filler) { b.writePerBox(upper, "") })
}

// overlay mounts a writable view of t: the lower layer has the host's public files, as if the
// box owned them, and the box's changes are on its tmpfs. The overlay works with the
// credentials of the process that mounts it, so the box needs no privilege.
func (b *builder) overlay(t tree) error {
	lower, err := b.publicLower(t)
	if err != nil {
		return err
	}
	defer lower.Close()
	if err := b.overlayOn(t, "public", func(*filler) {}); err != nil {
		return err
	}
	// A layer of an overlay is a single file system. Show what the host has mounted within t as
	// it is, read-only.
	subs, err := submounts(t.root)
	if err != nil {
		return err
	}
	for _, sub := range subs {
		dir, err := openDir(t.root, sub)
		if err == nil {
			err = cloneTo(dir, b.box, t.name+"/"+sub, 0)
			dir.Close()
		}
		if err != nil {
			return fmt.Errorf("%q, mounted within: %w", sub, err)
		}
	}
	return nil
}

// overlayOn mounts an overlay in place of t. Its lower layer is the one that was attached as
// lower; its upper layer has what fill creates, and later the changes of the box.
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
	var m *os.File
	err = linux.OnThrowawayThread(func() error {
		// The layers are named relative to the directory of the Root, because the box can
		// read these names in /proc/self/mountinfo.
		if err := linux.Fchdir(b.top); err != nil {
			return err
		}
		m, err = linux.NewMount("overlay", attrDefault,
			linux.Option{Key: "lowerdir", Value: layerName(lower, t)},
			linux.Option{Key: "upperdir", Value: layerName("upper", t)},
			linux.Option{Key: "workdir", Value: layerName("work", t)},
			// Otherwise, renaming a directory of the host would fail with EXDEV, and mv
			// would copy it.
			linux.Option{Key: "redirect_dir", Value: "on"},
			// It does not survive a crash, so nothing has to be synced (Linux 5.10).
			linux.Option{Key: "volatile"})
		return err
	})
	if err != nil {
		return err
	}
	defer m.Close()
	return attach(m, b.box, t.name)
}

// submounts returns the paths, relative to root, of the directories that are mounted directly
// within the mount whose root is root.
func submounts(root *os.File) ([]string, error) {
	st, err := linux.Statx(root, unix.STATX_MNT_ID) // Linux 5.8
	if err != nil {
		return nil, err
	}
	all, err := linux.ReadMountInfo()
	if err != nil {
		return nil, err
	}
	return children(all, st.Mnt_id)
}

// children returns the mount points of the mounts on mount id, relative to it.
func children(all []linux.MountInfo, id uint64) (subs []string, err error) {
	i := slices.IndexFunc(all, func(m linux.MountInfo) bool { return m.ID == id })
	if i < 0 {
		return nil, fmt.Errorf("mount %d: not in mountinfo", id)
	}
	for _, m := range all {
		if m.Parent == id {
			subs = append(subs, strings.TrimPrefix(m.Point, all[i].Point+"/"))
		}
	}
	return subs, nil
}

// lower attaches an ID-mapped clone of t beside the box's root, where the box cannot see it,
// and returns its root: before Linux 6.15, layers of an overlay must be attached.
//
// The clone must not be a layer of the box's overlay: files of the host's root, including
// private ones, belong to the box's root in it.
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

// idMapped returns a detached clone of t in which files of the host's users belong to the
// users of the box. EINVAL means that the file system does not support ID mapping.
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

// beside attaches the mount m beside the box's root and returns it. It closes m on failure.
// Only the launcher can search the directory.
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

// layer creates the directory of one layer of t beside the box's root. The box sees its owner
// and mode as those of /usr and so on.
func (b *builder) layer(kind string, t tree) (*os.File, error) {
	f := &filler{top: b.top, uid: b.o.IDBase, gid: b.o.IDBase}
	name := layerName(kind, t)
	f.mkdir(name, 0o755)
	layer := f.into(name)
	return layer.top, layer.err
}

// layerName is the name of a layer of t beside the box's root.
func layerName(kind string, t tree) string {
	return kind + "-" + strings.ReplaceAll(t.name, "/", "-")
}
