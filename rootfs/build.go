package rootfs

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/internal/linux"
)

// rootName is where the box's root is beneath the directory of a Root. The tmpfs
// around it holds what the box must not see.
const rootName = "root"

// skeletonSize bounds what a read-only root holds: generated files, and mount
// points that are made while the box runs.
const skeletonSize = 1 << 20

// Build makes the root of one box in dir, which it creates and which must not
// exist yet. On failure nothing is left.
//
// The mounts are visible in the calling process's mount namespace until
// [Root.Hide], and are copied to that of the box when its first process is made.
func (h *Host) Build(dir string, o Options) (root *Root, err error) {
	wrap := func(err error) error { return fmt.Errorf("building root file system: %w", err) }
	if err := o.check(); err != nil {
		return nil, wrap(err)
	}
	var undo cleanup.Stack
	defer func() { undo.Undo(&err) }()
	b := &builder{host: h, o: o, undo: &undo, root: &Root{dir: dir, idBase: o.IDBase}}
	b.root.built = b
	defer b.close()
	undo.Push(b.root.closeFiles)
	for _, step := range []func() error{b.skeleton, b.view, b.system, b.dev, b.reach, b.devpts, b.volumes} {
		if err := step(); err != nil {
			return nil, wrap(err)
		}
	}
	undo.Release()
	return b.root, nil
}

// builder is what the steps of Build and Cover share. It owns its files, of which top stays open
// for Cover.
type builder struct {
	host *Host
	o    Options
	undo *cleanup.Stack // of Build
	root *Root
	top  *os.File // root of the tmpfs, writable
	box  *os.File // the box's root as the box gets it
	// devices is the root of the box's /dev.
	devices *os.File
	etc     *os.File // id-mapped /etc of a writable root, until it is mounted
	kept    uint32   // as that of a filler
}

func (b *builder) close() {
	b.box.Close() // a nil file is fine
	b.etc.Close()
	b.devices.Close()
}

// skeleton makes the tmpfs with all directories, links and generated files.
func (b *builder) skeleton() (err error) {
	size := int64(skeletonSize)
	if b.o.Writable {
		size = b.o.UpperSize
	}
	bytes, inodes := b.host.figures.size()
	b.top, err = mountTop(b.root.dir, b.undo, sized(size+bytes, devInodes+inodes, "0711", 0, 0)...)
	if err != nil {
		return err
	}
	owner := &filler{top: b.top, uid: b.o.IDBase, gid: b.o.IDBase}
	owner.learnUmask(rootName, 0o755)
	b.kept = owner.kept
	f := owner.into(rootName)
	if f.err != nil {
		return f.err
	}
	b.root.skeleton = f.top
	return b.fill(f)
}

// directories of every box with their modes. Those of the host and the mount
// points for what is mounted here and by the caller are among them.
var directories = []struct {
	path string
	mode uint32
}{
	{"proc", 0o555}, {"sys", 0o555}, {"sys/devices", 0o555}, {"sys/devices/system", 0o555}, {processorsTarget, 0o555}, {"dev", 0o755}, {"etc", 0o755}, {"tmp", 0o1777}, {"run", 0o755},
	{"home", 0o755}, {HomeDir[1:], 0o755}, {"root", 0o755}, {"workspace", 0o755}, {"opt", 0o755}, {"srv", 0o755},
	{"mnt", 0o755}, {"media", 0o755}, {"var", 0o755}, {"var/lib", 0o755}, {"var/cache", 0o755}, {"var/log", 0o755},
}

// links of every box that do not come from the host.
var links = []link{{"var/tmp", "/tmp"}, {"var/run", "/run"}, {"var/lock", "/tmp"}}

// fill makes what the skeleton of this box holds.
func (b *builder) fill(f *filler) error {
	for _, d := range directories {
		f.mkdir(d.path, d.mode)
	}
	for _, l := range append(links[:len(links):len(links)], b.host.links...) {
		f.symlink(l.name, l.target)
	}
	for _, t := range b.host.trees {
		if t.name != "etc" {
			f.mkdir(t.name, 0o755)
		}
	}
	if b.o.Writable {
		return b.fillEtc(f)
	}
	f.mkdir(perBoxDir, 0o755)
	for _, name := range perBoxEtc {
		f.write(perBoxDir+"/"+name, 0o644, perBoxFile(name, b.o))
	}
	return f.err
}

// view attaches what the box will see as its root over the same directory of the
// tmpfs: a mount of its own, so that it can be read-only while the skeleton stays
// writable for us, and so that nothing beside it can be seen.
func (b *builder) view() (err error) {
	b.box, err = clone(b.root.skeleton)
	if err != nil {
		return err
	}
	attrs := uint64(attrDefault)
	if !b.o.Writable {
		// Set here and not by the box's own set-up, so that the kernel locks it: it
		// could not be undone even with all capabilities in the box
		// (mount_namespaces(7)).
		attrs = attrReadOnly
	}
	if err := linux.MountSetattr(b.box, false, unix.MountAttr{Attr_set: attrs}); err != nil {
		return err
	}
	return attach(b.box, b.top, rootName)
}

// system mounts what the host gives.
func (b *builder) system() error {
	for _, t := range b.host.trees {
		mount := func() error { return cloneTo(t.root, b.box, t.name, 0) }
		switch {
		case !b.o.Writable:
		case t.name == "etc":
			mount = b.overlayEtc
		default:
			mount = func() error { return b.overlay(t) }
		}
		if err := mount(); err != nil {
			return fmt.Errorf("mounting %q: %w", "/"+t.name, err)
		}
	}
	return nil
}

// mountTmpfs attaches a tmpfs of its own at path and keeps a descriptor of it.
func (b *builder) mountTmpfs(path string, attrs int, mode string, uid, gid int) error {
	m, err := linux.NewMount("tmpfs", attrs, sized(b.o.TmpSize, 0, mode, uid, gid)...)
	if err != nil {
		return err
	}
	b.root.volumes = append(b.root.volumes, Volume{Path: "/" + path, Size: b.o.TmpSize, File: m})
	if name, ok := strings.CutPrefix(path, "dev/"); ok {
		return attach(m, b.devices, name)
	}
	return attach(m, b.box, path)
}

// volumes mounts what every box can write to.
func (b *builder) volumes() error {
	base := b.o.IDBase
	if err := b.mountTmpfs("tmp", attrDefault, "1777", base, base); err != nil {
		return err
	}
	if err := b.mountTmpfs(HomeDir[1:], attrDefault, "0755", base+b.o.UID, base+b.o.GID); err != nil {
		return err
	}
	return b.mountTmpfs("dev/shm", attrDefault|unix.MOUNT_ATTR_NOEXEC, "1777", base, base)
}
