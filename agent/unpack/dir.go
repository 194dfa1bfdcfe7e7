package unpack

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/boxd/boxd/agent/unpack/proto"
	"golang.org/x/sys/unix"
)

// dir is a directory of the layer that is written. Until the end its files are root's and its mode is 0700, so
// that the process can write in it without a capability.
type dir struct {
	parent *dir // nil: the top
	name   string
	depth  int // of the top: 0
	sub    map[string]*dir
	fd     int // -1 unless it is in layerWriter.open

	named     bool // the archive contains it
	cut       bool // the archive deletes the lower layers' directory and makes it anew
	opaque    bool // the archive deletes the content of the directory below
	whiteouts bool // it has some
	meta           // at the end
}

// hidden reports whether nothing of the layers below shows in d.
func (d *dir) hidden() bool {
	return d != nil && (d.cut || d.opaque || d.parent.hidden())
}

// path returns the names on the way from the top to d.
func (d *dir) path() []string {
	if d.parent == nil {
		return nil
	}
	return append(d.parent.path(), d.name)
}

// makeWhiteout makes a whiteout of overlayfs in d, which is open as fd.
func (d *dir) makeWhiteout(fd int, name string) error {
	d.whiteouts = true
	if err := unix.Mknodat(fd, name, unix.S_IFCHR, 0); err != nil {
		return err
	}
	return meta{}.setTime(fd, name, unix.AT_SYMLINK_NOFOLLOW)
}

func isWhiteout(st *unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == 0 }

func openDir(dirFd int, name string) (int, error) {
	return unix.Openat(dirFd, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
}

// fd returns a descriptor of d, which a call for another directory may close.
func (w *layerWriter) fd(d *dir) (int, error) {
	if d.fd >= 0 {
		return d.fd, nil
	}
	parent, err := w.fd(d.parent)
	if err != nil {
		return -1, err
	}
	w.closeBelow(d.parent)
	fd, err := openDir(parent, d.name)
	if err != nil {
		return -1, fmt.Errorf("opening the directory %s: %w", quote(d.name), err)
	}
	d.fd = fd
	w.open = append(w.open, d)
	return fd, nil
}

// closeBelow closes the directories below d, which is open.
func (w *layerWriter) closeBelow(d *dir) { w.closeFrom(d.depth + 1) }

func (w *layerWriter) closeFrom(depth int) {
	for _, d := range w.open[min(depth, len(w.open)):] {
		unix.Close(d.fd)
		d.fd = -1
	}
	w.open = w.open[:min(depth, len(w.open))]
}

// walk returns the directory to which names lead. If create is set, it makes missing directories; otherwise the result is nil.
func (w *layerWriter) walk(names []string, create bool) (*dir, error) {
	d := w.top
	for links := 0; len(names) > 0; {
		name := names[0]
		names = names[1:]
		if name == "" || name == "." {
			continue
		}
		if name == ".." {
			if d.parent != nil {
				d = d.parent
			}
			continue
		}
		if sub := d.sub[name]; sub != nil {
			d = sub
			continue
		}
		switch {
		case strings.HasPrefix(name, whiteoutPrefix):
			return nil, corrupt("%s: a whiteout has no content", quote(name))
		case len(name) > maxName:
			return nil, refuse("%s: longer than %d bytes", quote(name), maxName)
		}
		target, err := w.symlink(d, name)
		if err != nil {
			return nil, err
		}
		if target == "" {
			if !create {
				return nil, nil
			}
			if d, err = w.mkdir(d, name, false); err != nil {
				return nil, err
			}
			continue
		}
		if links++; links > maxLinks {
			return nil, refuse("more than %d symlinks on the way to it", maxLinks)
		}
		if strings.HasPrefix(target, "/") {
			d = w.top
		}
		names = append(strings.Split(target, "/"), names...)
	}
	return d, nil
}

// symlink returns the target of the symlink name in d, "" if it is none. A symlink of the layers below counts
// where nothing of this layer is in its place.
func (w *layerWriter) symlink(d *dir, name string) (string, error) {
	fd, err := w.fd(d)
	if err != nil {
		return "", err
	}
	target, err := readlink(fd, name)
	if err == unix.ENOENT && !d.hidden() {
		if target, err = w.below.readlink(append(d.path(), name)); target != "" {
			w.result.Inherits = true
		}
	}
	if err == unix.EINVAL || err == unix.ENOENT {
		return "", nil
	}
	return target, err
}

func readlink(fd int, name string) (string, error) {
	buf := make([]byte, maxPath+1)
	n, err := unix.Readlinkat(fd, name, buf)
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// mkdir makes the directory name in d, which has no directory of that name. named says that the archive contains
// it, so that it replaces what is there.
func (w *layerWriter) mkdir(d *dir, name string, named bool) (*dir, error) {
	if d.depth == maxDepth {
		return nil, refuse("more than %d directories deep", maxDepth)
	}
	if !named {
		if w.made++; w.made+w.result.Entries > w.limits.Entries {
			return nil, w.tooMany()
		}
	}
	fd, err := w.fd(d)
	if err != nil {
		return nil, err
	}
	sub := &dir{parent: d, name: name, depth: d.depth + 1, fd: -1, meta: defaultMeta()}
	err = unix.Mkdirat(fd, name, 0o700)
	if err == unix.EEXIST {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return nil, err
		}
		if !named && !isWhiteout(&st) {
			return nil, refuse("%s: %w", quote(strings.Join(sub.path(), "/")), unix.ENOTDIR)
		}
		if err := w.remove(d, name); err != nil {
			return nil, err
		}
		sub.cut = true
		err = unix.Mkdirat(fd, name, 0o700)
	}
	if err != nil {
		return nil, fmt.Errorf("making the directory %s: %w", quote(name), err)
	}
	if d.sub == nil {
		d.sub = make(map[string]*dir)
	}
	d.sub[name] = sub
	return sub, nil
}

// finish gives every directory its metadata and returns the list of opaque directories.
func (w *layerWriter) finish() ([]byte, error) {
	w.closeBelow(w.top)
	if w.top.opaque {
		if err := w.hideBelow(); err != nil {
			return nil, fmt.Errorf("hiding the layers below: %w", err)
		}
	}
	var opaque []string
	if err := w.settle(w.top, w.top.fd, false, &opaque); err != nil {
		return nil, err
	}
	slices.Sort(opaque)
	var list []byte
	for _, name := range opaque {
		list = append(append(list, name...), 0)
	}
	return list, nil
}

// hideBelow hides the top directories of the layers below. Overlayfs merges those whatever their attributes say,
// so each of their entries is hidden.
func (w *layerWriter) hideBelow() error {
	w.result.Inherits = true
	for _, sub := range w.top.sub {
		sub.cut = true
	}
	names, err := w.below.names()
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := w.top.makeWhiteout(w.top.fd, name); err != nil && err != unix.EEXIST {
			return err
		}
	}
	return nil
}

// settle gives d, open as fd, and all directories in it their metadata, and adds their names to opaque. hidden
// says that the parent shows nothing of the layers below.
func (w *layerWriter) settle(d *dir, fd int, hidden bool, opaque *[]string) error {
	alone := hidden || d.cut || d.opaque // nothing below shows in d
	if d.parent != nil {
		if !hidden && !d.cut && (!d.named || d.whiteouts) {
			found, err := w.below.inherit(d.path(), fd, !d.named)
			if err != nil {
				return fmt.Errorf("directory %s: reading the layers below: %w", quote(strings.Join(d.path(), "/")), err)
			}
			if !d.named {
				w.result.Inherits = true
				if found != nil {
					d.meta = *found
				}
			}
			alone = alone || w.limits.Below > 0 && found == nil
		}
		if d.cut || d.opaque {
			name := strings.Join(d.path(), "/")
			if w.listed += len(name) + 1; w.listed > proto.MaxOpaque {
				return refuse("archive: the names of its opaque directories have more than %d bytes", proto.MaxOpaque)
			}
			*opaque = append(*opaque, name)
		}
		if d.whiteouts && alone {
			if err := dropWhiteouts(fd); err != nil {
				return fmt.Errorf("removing whiteouts: %w", err)
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.sub)) {
		sub, err := openDir(fd, name)
		if err != nil {
			return fmt.Errorf("opening the directory %s: %w", quote(name), err)
		}
		err = w.settle(d.sub[name], sub, alone && d.parent != nil || hidden, opaque)
		unix.Close(sub)
		if err != nil {
			return err
		}
	}
	if d.owner != w.self {
		if err := unix.Fchown(fd, d.uid, d.gid); err != nil {
			return fmt.Errorf("changing the owner of a directory: %w", err)
		}
	}
	if err := unix.Fchmod(fd, d.mode); err != nil {
		return fmt.Errorf("changing the mode of a directory: %w", err)
	}
	return d.setTime(fd, "", unix.AT_EMPTY_PATH)
}

// dropWhiteouts removes the whiteouts of a directory that is merged with none: overlayfs would list them
// (fs/overlayfs/readdir.c, ovl_iterate of a directory that is not merged).
func dropWhiteouts(fd int) error {
	names, err := readNames(fd)
	if err != nil {
		return err
	}
	for _, name := range names {
		var st unix.Stat_t
		if err := unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return err
		}
		if !isWhiteout(&st) {
			continue
		}
		if err := unix.Unlinkat(fd, name, 0); err != nil {
			return err
		}
	}
	return nil
}

// removeTree removes the directory name with its content, which this process has written.
func removeTree(dirFd int, name string) error {
	fd, err := openDir(dirFd, name)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	names, err := readNames(fd)
	if err != nil {
		return err
	}
	for _, n := range names {
		err := unix.Unlinkat(fd, n, 0)
		if err == unix.EISDIR {
			err = removeTree(fd, n)
		}
		if err != nil {
			return err
		}
	}
	return unix.Unlinkat(dirFd, name, unix.AT_REMOVEDIR)
}

// readNames returns the names of all entries of a directory, sorted.
func readNames(fd int) ([]string, error) {
	if _, err := unix.Seek(fd, 0, 0); err != nil {
		return nil, err
	}
	var names []string
	buf := make([]byte, 32<<10)
	for {
		n, err := unix.ReadDirent(fd, buf)
		if err != nil || n <= 0 {
			slices.Sort(names)
			return names, err
		}
		_, _, names = unix.ParseDirent(buf[:n], -1, names)
	}
}
