package rootfs

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/cleanup"
	"github.com/boxd/boxd/internal/linux"
)

// rootName is the box's root beneath the directory of a Root. The tmpfs around it holds
// what the box must not see.
const rootName = "root"

// skeletonSize bounds the content of a read-only root: generated files, and mount points
// that are created while the box runs, as many as a box can have (spec.MaxLayers).
const skeletonSize = 3 << 20

// Build creates dir, which must not exist yet, and in it the root of one box. On failure
// nothing is left behind.
//
// The mounts are visible in the mount namespace of the calling process until [Root.Hide].
// They are copied to that of the box when its first process is created.
func (h *Host) Build(dir string, o Options) (root *Root, err error) {
	wrap := func(err error) error { return fmt.Errorf("building root file system: %w", err) }
	if err := o.check(); err != nil {
		return nil, wrap(err)
	}
	var undo cleanup.Stack
	defer undo.Undo(&err)
	b := &builder{host: h, o: o, undo: &undo, root: &Root{dir: dir, idBase: o.IDBase}}
	b.root.built = b
	defer b.close()
	undo.Push(b.root.closeFiles)
	base := []func() error{b.makeTop, b.skeleton, b.view, b.system}
	if len(o.Layers) > 0 {
		base = []func() error{b.makeTop, b.merge, b.view}
	}
	for _, step := range append(base, b.dev, b.reach, b.devpts, b.volumes) {
		if err := step(); err != nil {
			return nil, wrap(err)
		}
	}
	undo.Release()
	return b.root, nil
}

// builder is the state that the steps of Build and Cover share. It owns its files. top stays
// open for Cover.
type builder struct {
	host *Host
	o    Options
	undo *cleanup.Stack // of Build
	root *Root
	top  *os.File // root of the tmpfs, writable
	box  *os.File // the box's root as the box sees it
	// devices is the root of the box's /dev.
	devices *os.File
	etc     *os.File // ID-mapped /etc of a writable root, until it is mounted
	kept    uint32   // like that of a filler
}

func (b *builder) close() {
	b.box.Close() // a nil file is fine
	b.etc.Close()
	b.devices.Close()
}

// makeTop mounts the tmpfs and creates the directory of the box's root in it.
func (b *builder) makeTop() (err error) {
	size := int64(skeletonSize)
	if b.o.Writable {
		size = b.o.UpperSize
	}
	bytes, inodes := b.host.figures.size()
	b.top, err = mountTop(b.root.dir, b.undo, sized(size+bytes, devInodes+inodes, "0711", 0, 0)...)
	if err != nil {
		return err
	}
	f := b.owner()
	f.learnUmask(rootName, 0o755)
	b.kept = f.kept
	return f.err
}

// owner returns a filler of the tmpfs for entries that belong to the box's root.
func (b *builder) owner() *filler {
	return &filler{top: b.top, uid: b.o.IDBase, gid: b.o.IDBase, kept: b.kept}
}

// skeleton creates all directories, links and generated files.
func (b *builder) skeleton() error {
	f := b.owner().into(rootName)
	if f.err != nil {
		return f.err
	}
	b.root.skeleton = f.top
	return b.fill(f)
}

// directories lists the directories of every box with their modes, including mount points
// for this package and for its callers.
var directories = []struct {
	path string
	mode uint32
}{
	{"proc", 0o555}, {"sys", 0o555}, {"sys/devices", 0o555}, {"sys/devices/system", 0o555}, {processorsTarget, 0o555}, {"dev", 0o755}, {"etc", 0o755}, {"tmp", 0o1777}, {"run", 0o755},
	{"home", 0o755}, {HomeDir[1:], 0o755}, {"root", 0o755}, {"workspace", 0o755}, {"opt", 0o755}, {"srv", 0o755},
	{"mnt", 0o755}, {"media", 0o755}, {"var", 0o755}, {"var/lib", 0o755}, {"var/cache", 0o755}, {"var/log", 0o755},
}

// links lists the symlinks of every box that do not come from the host.
var links = []link{{"var/tmp", "/tmp"}, {"var/run", "/run"}, {"var/lock", "/tmp"}}

// fill creates the content of the box's skeleton.
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
	b.writePerBox(f, perBoxDir+"/")
	return f.err
}

// writePerBox writes the files of perBoxEtc, whose paths begin with prefix.
func (b *builder) writePerBox(f *filler, prefix string) {
	for _, name := range perBoxEtc {
		f.write(prefix+name, 0o644, perBoxFile(name, b.o))
	}
}

// view attaches the box's root over rootName of the tmpfs. It is a separate mount, so that it can be read-only while the skeleton stays writable for the launcher, and so that
// the box sees nothing beside it.
func (b *builder) view() (err error) {
	b.box, err = clone(b.root.skeleton)
	if err != nil {
		return err
	}
	attrs := uint64(attrDefault)
	if !b.o.Writable {
		// Set here and not in the box, so that the kernel locks it: not even a process
		// with all capabilities in the box could undo it (mount_namespaces(7)).
		attrs = attrReadOnly
	}
	if err := linux.MountSetattr(b.box, false, unix.MountAttr{Attr_set: attrs}); err != nil {
		return err
	}
	return attach(b.box, b.top, rootName)
}

// system mounts the system directories of the host.
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

// mountTmpfs attaches a new tmpfs at path and keeps a descriptor of it.
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

// volumes mounts the directories that every box can write to.
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
