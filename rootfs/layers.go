package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// The root of a box with Options.Layers is one overlay: the layers of an image, and above them
// an upper directory on the box's own tmpfs.
//
// Everything in an image is hostile: its /dev may be a symlink to a directory of the host, and its
// /etc/hosts a directory. So the launcher never walks through an image. Everything that boxd puts
// into the root it creates in the upper directory before the overlay exists. There, overlayfs
// itself decides as needed: a directory in upper covers anything but a directory in the layers
// below, and a file covers everything (ovl_lookup in fs/overlayfs/namei.c).

// Names beside the box's root, where the box cannot see them.
const (
	upperName  = "upper"
	workName   = "work"
	mergedName = "merged" // the overlay, writable even if the box's root is not
	lowersName = "lowers" // layers in overlayByName
)

// boxdDirs lists the directories that boxd needs in a root of layers, parents first. Something is
// mounted on each of them, or may be.
var boxdDirs = []struct {
	path string
	mode uint32
	// keeps says that the box sees the directory itself, with the owner and mode that it has in
	// the image.
	keeps bool
}{
	{"proc", 0o555, false}, {"dev", 0o755, false}, {"tmp", 0o1777, false},
	{"sys", 0o555, false}, {"sys/devices", 0o555, false}, {"sys/devices/system", 0o555, false}, {processorsTarget, 0o555, false},
	{"etc", 0o755, true}, {"etc/ssh", 0o755, false}, {"etc/ssh/ssh_config.d", 0o755, false}, {"workspace", 0o755, true}, {"home", 0o755, true}, {HomeDir[1:], 0o755, false},
}

// merge makes the overlay. b.root.skeleton becomes its root.
func (b *builder) merge() error {
	lowers, err := b.mapLayers()
	// The end of a detached mount takes an RCU grace period, so it happens in the background.
	defer func() { b.root.closing.Go(func() { linux.CloseAll(lowers) }) }()
	if err != nil {
		return err
	}
	f := b.owner()
	f.mkdir(upperName, 0o755)
	upper := f.into(upperName)
	if upper.err != nil {
		return upper.err
	}
	defer upper.top.Close()
	if err := b.fillUpper(upper, lowers); err != nil {
		return err
	}
	own := &filler{top: b.top}
	own.mkdir(workName, 0o700)
	own.mkdir(mergedName, 0o700)
	if own.err != nil {
		return own.err
	}
	if b.root.skeleton, err = b.overlayLayers(lowers); err != nil {
		return fmt.Errorf("combining %d layers: %w", len(lowers), err)
	}
	return nil
}

// mapLayers returns detached, read-only clones of the layers, topmost first, with files that
// belong to the box's users. The caller closes them, even after an error.
func (b *builder) mapLayers() (lowers []*os.File, err error) {
	for i, layer := range slices.Backward(b.o.Layers) {
		m, err := linux.OpenTree(layer, "", unix.OPEN_TREE_CLONE|unix.AT_EMPTY_PATH)
		if err != nil {
			return lowers, fmt.Errorf("layer %d: %w", i, err)
		}
		lowers = append(lowers, m)
		err = linux.MountSetattr(m, false, unix.MountAttr{
			Attr_set:    attrReadOnly | unix.MOUNT_ATTR_IDMAP,
			Propagation: unix.MS_PRIVATE,
			Userns_fd:   uint64(b.o.IDMapUserNS.Fd()),
		})
		if errors.Is(err, unix.EINVAL) {
			err = fmt.Errorf("its file system cannot be id-mapped by this kernel, keep images on ext4, xfs or btrfs: %w", err)
		}
		if err != nil {
			return lowers, fmt.Errorf("layer %d: %w", i, err)
		}
	}
	return lowers, nil
}

// fillUpper creates in the upper directory what boxd needs in the root.
func (b *builder) fillUpper(f *filler, lowers []*os.File) error {
	for _, d := range boxdDirs {
		mode, owner := d.mode, *f
		if d.keeps {
			st, err := topmost(lowers, d.path)
			if err != nil {
				return fmt.Errorf("%q in the layers: %w", "/"+d.path, err)
			}
			// An ID outside of the box's range is one that the id map does not have.
			if isDir(st) {
				mode = st.Mode & 0o1777
				owner.uid, owner.gid = b.inBox(st.Uid), b.inBox(st.Gid)
			}
		}
		if owner.mkdir(d.path, mode); owner.err != nil {
			return owner.err
		}
	}
	// passwd and group are those of the image, which has its own users.
	for _, name := range []string{"hostname", "hosts"} {
		f.write("etc/"+name, 0o644, perBoxFile(name, b.o))
	}
	f.write("etc/ssh/ssh_config.d/boxd.conf", 0o644, []byte(sshConfig))
	for _, name := range []string{"resolv.conf", "ssh/boxd-proxy"} {
		f.write("etc/"+name, 0o644, []byte(genericEtc[name]))
	}
	return f.err
}

// inBox returns the host ID id if it is one of the box, and that of the box's root otherwise.
func (b *builder) inBox(id uint32) int {
	if n := int(id) - b.o.IDBase; n < 0 || n >= boxIDs {
		return b.o.IDBase
	}
	return int(id)
}

// topmost returns the status of an entry of the layers' roots in the layer that decides what it
// is. Its mode is 0 if no layer has it.
func topmost(lowers []*os.File, name string) (unix.Stat_t, error) {
	for _, l := range lowers {
		st, err := linux.StatAt(l, name)
		if !errors.Is(err, fs.ErrNotExist) {
			return st, err
		}
	}
	return unix.Stat_t{}, nil
}

// overlayOptions are those of all roots of layers, apart from the layers. upper is how the upper
// and work directories are reached from the working directory. The box can read these names in
// /proc/self/mountinfo, so they are relative.
func overlayOptions(upper string) []linux.Option {
	return []linux.Option{
		{Key: "upperdir", Value: upper + upperName},
		{Key: "workdir", Value: upper + workName},
		// Otherwise, renaming a directory of the image would fail with EXDEV. Only a
		// process with CAP_SYS_ADMIN on the host can set the attribute that names the
		// old place, so no image has one.
		{Key: "redirect_dir", Value: "on"},
		// Kernels can be configured to turn these on. They serve file servers and
		// chown, at the price of further attributes that would be believed.
		{Key: "index", Value: "off"},
		{Key: "metacopy", Value: "off"},
		// The root does not survive a crash, so nothing has to be synced (Linux 5.10).
		{Key: "volatile"},
	}
}

// overlayLayers mounts the overlay at mergedName and returns its root. Linux 6.15 takes detached
// mounts as layers by descriptor. Older kernels refuse them with EINVAL, and before Linux 6.5 with
// EOPNOTSUPP.
func (b *builder) overlayLayers(lowers []*os.File) (*os.File, error) {
	if !b.host.byName.Load() {
		m, err := b.overlayByFD(lowers)
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) {
			return m, err
		}
	}
	m, err := b.overlayByName(lowers)
	if err == nil {
		b.host.byName.Store(true)
	}
	return m, err
}

func (b *builder) overlayByFD(lowers []*os.File) (m *os.File, err error) {
	var options []linux.Option
	for _, l := range lowers {
		options = append(options, linux.Option{Key: "lowerdir+", File: l})
	}
	options = append(options, overlayOptions("")...)
	err = linux.OnThrowawayThread(func() error {
		if err := linux.Fchdir(b.top); err != nil {
			return err
		}
		m, err = linux.NewMount("overlay", attrDefault, options...)
		return err
	})
	if err != nil {
		return nil, err
	}
	if err := attach(m, b.top, mergedName); err != nil {
		m.Close()
		return nil, err
	}
	// The overlay has its own clones. Stacked, these end together, in one grace period for all.
	for _, l := range lowers[1:] {
		_ = linux.MoveMount(l, lowers[0], "") // detached mounts on detached mounts: Linux 6.15, as above
	}
	return m, nil
}

// overlayByName attaches the layers to a directory of numbers, and mounts the overlay with
// mount(2), whose options take a page: fsconfig(2) takes 256 bytes, and would allow one layer at
// a time only since Linux 6.5. The overlay has its own clones of the layers, so the directory is
// gone at the end.
func (b *builder) overlayByName(lowers []*os.File) (*os.File, error) {
	names, err := linux.NewMount("tmpfs", attrDefault, sized(minSize, MaxLayers, "0700", 0, 0)...)
	if err != nil {
		return nil, err
	}
	defer names.Close()
	own := &filler{top: b.top}
	own.mkdir(lowersName, 0o700)
	own.do(func() error { return attach(names, b.top, lowersName) })
	if own.err != nil {
		return nil, own.err
	}
	var list []string
	for i, l := range lowers {
		name := strconv.Itoa(i)
		list = append(list, name)
		if err := errors.Join(linux.MkdirAt(names, name, 0o700), attach(l, names, name)); err != nil {
			return nil, err
		}
	}
	text := "lowerdir=" + strings.Join(list, ":")
	for _, o := range overlayOptions("../") {
		text += "," + o.Key
		if o.Value != "" {
			text += "=" + o.Value
		}
	}
	err = linux.OnThrowawayThread(func() error {
		if err := linux.Fchdir(names); err != nil {
			return err
		}
		err := linux.Retry(func() error {
			return unix.Mount("overlay", "../"+mergedName, "overlay", unix.MS_NOSUID|unix.MS_NODEV, text)
		})
		return os.NewSyscallError("mount", err)
	})
	if errors.Is(err, unix.EINVAL) {
		release, _, _ := linux.KernelRelease() // else empty
		err = fmt.Errorf("kernel %s refuses: layers with mapped ids need Linux 5.19, use the image %q on an older one: %w", release, "host", err)
	}
	err = errors.Join(err, linux.Unmount(filepath.Join(b.root.dir, lowersName), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW))
	if err != nil {
		return nil, err
	}
	return openDir(b.top, mergedName)
}
