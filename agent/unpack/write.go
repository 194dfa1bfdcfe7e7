package unpack

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/agent/unpack/proto"
	"github.com/boxd/boxd/internal/endmark"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// Limits of names. The kernel has the first two as well (NAME_MAX, PATH_MAX); the third bounds descriptors.
const (
	maxName  = 255
	maxPath  = 4095
	maxDepth = 256
	maxLinks = 40 // symlinks on the way to one entry, as in the kernel (path_resolution(7))
)

// How an archive names what it deletes (image-spec layer.md, "Whiteouts").
const (
	whiteoutPrefix = ".wh."
	opaqueName     = ".wh..wh..opq"
	aufsPrefix     = ".wh..wh." // metadata of AUFS, which mean nothing elsewhere
)

// How PAX records name extended attributes and sparse files.
const (
	paxXattr  = "SCHILY.xattr."
	paxSparse = "GNU.sparse."
)

// layerWriter writes the entries of one archive.
type layerWriter struct {
	limits proto.Limits
	result proto.Result
	below  below
	top    *dir
	open   []*dir // open directories, each the parent of the next; the first is top
	made   int64  // directories that the archive does not contain
	listed int    // bytes of the list of opaque directories
	self   owner  // what a new file belongs to
	buf    []byte
}

type owner struct{ uid, gid int }

// write writes the archive in to layer, below which layers in directories 0, 1, … of belowDir are.
func write(layer, belowDir string, in io.Reader, limits proto.Limits) (proto.Result, error) {
	defer unix.Umask(unix.Umask(0))
	layerFd, err := openDir(unix.AT_FDCWD, layer)
	if err != nil {
		return proto.Result{}, fmt.Errorf("opening the layer %q: %w", layer, err)
	}
	defer unix.Close(layerFd)
	if err := unix.Mkdirat(layerFd, "fs", 0o700); err != nil && err != unix.EEXIST {
		return proto.Result{}, fmt.Errorf("making the top directory of the layer: %w", err)
	}
	top, err := openDir(layerFd, "fs")
	if err != nil {
		return proto.Result{}, fmt.Errorf("opening the top directory of the layer: %w", err)
	}
	w := &layerWriter{
		limits: limits,
		below:  below{dir: belowDir, layers: limits.Below},
		top:    &dir{fd: top, meta: defaultMeta()},
		self:   self(),
		buf:    make([]byte, streamBuffer),
	}
	w.open = []*dir{w.top}
	defer func() { w.closeFrom(0) }()
	if err := w.all(in); err != nil {
		return proto.Result{}, err
	}
	// Only an empty directory can be removed, and the caller abandons a layer that is refused.
	if limits.Root && unix.Unlinkat(layerFd, "fs", unix.AT_REMOVEDIR) == nil {
		return proto.Result{}, refuse("the archive has no files: a root file system needs some")
	}
	opaque, err := w.finish()
	if err != nil {
		return proto.Result{}, err
	}
	if err := writeFile(layerFd, "opaque", opaque); err != nil {
		return proto.Result{}, fmt.Errorf("writing the list of opaque directories: %w", err)
	}
	has := func(name string) bool {
		var st unix.Stat_t
		return unix.Fstatat(top, name, &st, unix.AT_SYMLINK_NOFOLLOW) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG
	}
	w.result.Bundle = has("oci-layout") || has("manifest.json") && has("repositories")
	return w.result, nil
}

func (w *layerWriter) all(in io.Reader) error {
	source := &source{Reader: bufio.NewReaderSize(in, streamBuffer)}
	var stream io.Reader = source
	if w.limits.Root {
		stream = endmark.Reader(source)
	}
	archive := tar.NewReader(stream)
	for {
		h, err := archive.Next()
		if err == io.EOF {
			// The caller computes the digest of the whole stream, so it must be read to its end.
			if _, err = io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{source}, w.buf); err != nil {
				return fmt.Errorf("reading the archive: %w", err)
			}
			return nil
		}
		if err != nil {
			return source.explain("reading the archive", err)
		}
		if w.result.Entries++; w.result.Entries > w.limits.Entries {
			return w.tooMany()
		}
		if err := w.entry(h, archive); err != nil {
			if source.failed != nil || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, endmark.ErrCut) || errors.Is(err, tar.ErrHeader) {
				return source.explain("entry "+quote(h.Name), err)
			}
			return fmt.Errorf("entry %s: %w", quote(h.Name), err)
		}
	}
}

func (w *layerWriter) tooMany() error {
	return refuse("archive: more than %d entries", w.limits.Entries)
}

// entry writes one entry of the archive.
func (w *layerWriter) entry(h *tar.Header, content io.Reader) error {
	if h.Typeflag == tar.TypeXGlobalHeader {
		return nil // says nothing that a layer has
	}
	names, err := splitName(h.Name)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(names, func(n string) bool { return strings.HasPrefix(n, aufsPrefix) && n != opaqueName }) {
		return nil
	}
	if h.Typeflag == tar.TypeGNUSparse || hasRecord(h, paxSparse) {
		return refuse("sparse file: no layer has such entries")
	}
	if h.Uid < 0 || h.Uid > proto.MaxID || h.Gid < 0 || h.Gid > proto.MaxID {
		return refuse("owner %d:%d: image uses ids outside of the box's range, 0 to %d", h.Uid, h.Gid, proto.MaxID)
	}
	m := metaOf(h)
	if h.Mode&(unix.S_ISUID|unix.S_ISGID) != 0 {
		w.skipped("setuid")
	}
	if len(names) == 0 {
		if h.Typeflag != tar.TypeDir {
			return refuse("the top of a layer must be a directory")
		}
		return w.describe(w.top, m, h)
	}
	name := names[len(names)-1]
	deleted, deletes := strings.CutPrefix(name, whiteoutPrefix)
	d, err := w.walk(names[:len(names)-1], true)
	if deletes && errors.Is(err, unix.ENOTDIR) {
		return nil // umoci deletes the content of a directory that it replaces by a file
	}
	if err != nil {
		return err
	}
	if name == opaqueName {
		d.opaque = true
		return nil
	}
	if deletes {
		if deleted == "" || deleted == "." || deleted == ".." {
			return corrupt("whiteout without a name")
		}
		return w.whiteout(d, deleted)
	}
	switch h.Typeflag {
	case tar.TypeDir:
		sub := d.sub[name]
		if sub == nil {
			if sub, err = w.mkdir(d, name, true); err != nil {
				return err
			}
		}
		return w.describe(sub, m, h)
	case tar.TypeReg:
		return w.file(d, name, m, h, content)
	case tar.TypeLink:
		return w.link(d, name, h.Linkname)
	case tar.TypeSymlink:
		if h.Linkname == "" || len(h.Linkname) > maxPath {
			return corrupt("symlink: its target must have 1 to %d bytes", maxPath)
		}
		err = w.replacing(d, name, func(fd int) error { return unix.Symlinkat(h.Linkname, fd, name) })
	case tar.TypeFifo:
		err = w.replacing(d, name, func(fd int) error { return unix.Mknodat(fd, name, unix.S_IFIFO|m.mode, 0) })
	case tar.TypeChar, tar.TypeBlock:
		w.skipped("device")
		return w.remove(d, name)
	default:
		return refuse("type %q: no layer has such entries", h.Typeflag)
	}
	if err != nil {
		return err
	}
	w.xattrs(-1, h)
	fd, err := w.fd(d)
	if err != nil {
		return err
	}
	if m.owner != w.self {
		if err := unix.Fchownat(fd, name, m.uid, m.gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return fmt.Errorf("changing the owner: %w", err)
		}
	}
	return m.setTime(fd, name, unix.AT_SYMLINK_NOFOLLOW)
}

// splitName returns the directories and the last name of an entry: none for the top of the layer. A name that
// leads above the top stays there.
func splitName(name string) ([]string, error) {
	cleaned := path.Clean("/" + name)[1:]
	if cleaned == "" {
		return nil, nil
	}
	if len(cleaned) > maxPath {
		return nil, refuse("name longer than %d bytes", maxPath)
	}
	names := strings.Split(cleaned, "/")
	if len(names) > maxDepth {
		return nil, refuse("more than %d directories deep", maxDepth)
	}
	for _, n := range names {
		if len(n) > maxName {
			return nil, refuse("%s: longer than %d bytes", quote(n), maxName)
		}
	}
	return names, nil
}

func (w *layerWriter) skipped(kind string) {
	if w.result.Skipped == nil {
		w.result.Skipped = make(map[string]int64)
	}
	w.result.Skipped[kind]++
}

// file writes a regular file.
func (w *layerWriter) file(d *dir, name string, m meta, h *tar.Header, content io.Reader) error {
	if h.Size > w.limits.Bytes-w.result.Bytes {
		return refuse("archive: its files have more than %d bytes", w.limits.Bytes)
	}
	w.result.Bytes += h.Size
	// An attribute is set by a process that may write to the file, which its mode need not allow.
	mode, hasXattrs := m.mode, hasRecord(h, paxXattr)
	if hasXattrs {
		mode = 0o600
	}
	fd := -1
	err := w.replacing(d, name, func(dirFd int) (err error) {
		fd, err = unix.Openat(dirFd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, mode)
		return err
	})
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	for left := h.Size; left > 0; {
		n, err := io.ReadFull(content, w.buf[:min(left, int64(len(w.buf)))])
		if err != nil {
			return err
		}
		if err := writeAll(fd, w.buf[:n]); err != nil {
			return fmt.Errorf("writing: %w", err)
		}
		left -= int64(n)
	}
	// The disk works while the next files are unpacked, or it would have all to do when the layer is published.
	_ = unix.SyncFileRange(fd, 0, 0, unix.SYNC_FILE_RANGE_WRITE)
	if hasXattrs {
		w.xattrs(fd, h)
	}
	if m.owner != w.self {
		if err := unix.Fchown(fd, m.uid, m.gid); err != nil {
			return fmt.Errorf("changing the owner: %w", err)
		}
	}
	if hasXattrs {
		if err := unix.Fchmod(fd, m.mode); err != nil {
			return fmt.Errorf("changing the mode: %w", err)
		}
	}
	return m.setTime(fd, "", unix.AT_EMPTY_PATH)
}

// link makes a hard link to a file of this layer.
func (w *layerWriter) link(d *dir, name, target string) error {
	names, err := splitName(target)
	if err != nil {
		return err
	}
	missing := refuse("hard link to %s: the archive has no such file before it", quote(target))
	if len(names) == 0 {
		return missing
	}
	from, err := w.walk(names[:len(names)-1], false)
	if err != nil {
		return err
	}
	base := names[len(names)-1]
	if from == nil || from == d && base == name || from.sub[base] != nil {
		return missing
	}
	fromFd, err := w.fd(from)
	if err != nil {
		return err
	}
	// Making room may close descriptors, so this one is kept.
	fromFd, err = unix.FcntlInt(uintptr(fromFd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fromFd)
	var st unix.Stat_t
	if err := unix.Fstatat(fromFd, base, &st, unix.AT_SYMLINK_NOFOLLOW); err == unix.ENOENT || err == nil && isWhiteout(&st) {
		return missing
	} else if err != nil {
		return err
	}
	err = w.replacing(d, name, func(fd int) error { return unix.Linkat(fromFd, base, fd, name, 0) })
	if err == unix.ENOENT { // it was in what the link replaced
		return missing
	}
	return err
}

// whiteout hides name in the layers below.
func (w *layerWriter) whiteout(d *dir, name string) error {
	if sub := d.sub[name]; sub != nil {
		sub.cut = true
		return nil
	}
	fd, err := w.fd(d)
	if err != nil {
		return err
	}
	if err := d.makeWhiteout(fd, name); err != nil && err != unix.EEXIST {
		return fmt.Errorf("making a whiteout: %w", err)
	}
	return nil // an existing entry hides the lower one already
}

// replacing makes the file name in d, in place of what the archive has there so far.
func (w *layerWriter) replacing(d *dir, name string, create func(dirFd int) error) error {
	fd, err := w.fd(d)
	if err != nil {
		return err
	}
	err = linux.Retry(func() error { return create(fd) })
	if err != unix.EEXIST {
		return err
	}
	if err := w.remove(d, name); err != nil {
		return err
	}
	return linux.Retry(func() error { return create(fd) })
}

// remove removes what the archive has had so far as name in d, if anything.
func (w *layerWriter) remove(d *dir, name string) error {
	fd, err := w.fd(d)
	if err != nil {
		return err
	}
	if d.sub[name] != nil {
		w.closeBelow(d)
		delete(d.sub, name)
		err = removeTree(fd, name)
	} else {
		err = unix.Unlinkat(fd, name, 0)
	}
	if err != nil && err != unix.ENOENT {
		return fmt.Errorf("removing the earlier entry: %w", err)
	}
	return nil
}

// meta is what a file has beside its content.
type meta struct {
	owner
	mode  uint32 // permissions and sticky bit
	mtime unix.Timespec
}

// defaultMeta describes a directory that the archive does not describe.
func defaultMeta() meta { return meta{owner: self(), mode: 0o755} }

// self is the user of this process, root in a box.
func self() owner { return owner{unix.Geteuid(), unix.Getegid()} }

func metaOf(h *tar.Header) meta {
	t := h.ModTime
	if t.IsZero() {
		t = time.Unix(0, 0)
	}
	return meta{owner{h.Uid, h.Gid}, uint32(h.Mode) & 0o1777, unix.Timespec{Sec: t.Unix(), Nsec: int64(t.Nanosecond())}}
}

func (m meta) setTime(fd int, name string, flags int) error {
	ts := []unix.Timespec{m.mtime, m.mtime}
	if err := unix.UtimesNanoAt(fd, name, ts, flags); err != nil {
		return fmt.Errorf("changing the time: %w", err)
	}
	return nil
}

// describe gives an entry's metadata to a directory. All but its attributes are set at the end, because they may
// forbid writing, and writing changes the time.
func (w *layerWriter) describe(d *dir, m meta, h *tar.Header) error {
	d.named, d.meta = true, m
	if !hasRecord(h, paxXattr) {
		return nil
	}
	fd, err := w.fd(d)
	if err != nil {
		return err
	}
	w.xattrs(fd, h)
	return nil
}

// hasRecord reports whether an entry has a PAX record whose name begins with prefix.
func hasRecord(h *tar.Header, prefix string) bool {
	for key := range h.PAXRecords {
		if strings.HasPrefix(key, prefix) {
			return true
		}
	}
	return false
}

// xattrs sets the attributes that a layer may have, on the open file fd; -1 is a file that can have none.
func (w *layerWriter) xattrs(fd int, h *tar.Header) {
	for key, value := range h.PAXRecords {
		name, ok := strings.CutPrefix(key, paxXattr)
		switch {
		case !ok:
		case name == "security.capability":
			w.skipped("capability")
		case fd < 0 || !isUserXattr(name) || unix.Fsetxattr(fd, name, []byte(value), 0) != nil:
			w.skipped("xattr")
		}
	}
}

// isUserXattr reports whether a layer may have the attribute: those of overlayfs mean something to it.
func isUserXattr(name string) bool {
	return strings.HasPrefix(name, "user.") && !strings.HasPrefix(name, "user.overlay.")
}

func writeAll(fd int, p []byte) error {
	for len(p) > 0 {
		var n int
		err := linux.Retry(func() (err error) { n, err = unix.Write(fd, p); return err })
		if err != nil {
			return err
		}
		p = p[n:]
	}
	return nil
}

func writeFile(dirFd int, name string, content []byte) error {
	fd, err := unix.Openat(dirFd, name, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(writeAll(fd, content), unix.Close(fd))
}
