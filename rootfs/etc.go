package rootfs

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// This file decides what a box sees of the host's /etc. Only files that everybody on the host
// may read, below directories that everybody may list, are considered. Of these, a box sees
//
//   - unchanged files of packages, since anybody can get the package;
//   - changed files of packages, and a few files that are generated on each system
//     (generatedEtc), unless they may hold a secret;
//   - symlinks into the host's system directories, and to anything in /etc that the box sees.
//
// So unknown files, such as /etc/foo.key or /etc/myapp/token.conf, are left out. If no package
// database can be read, unpackagedEtc says which files count as files of packages. A file that
// certainly is a secret is always left out.
//
// The result is a copy, made once per state of /etc. Files that are added later are not in it.

// etcEntry is an entry of the host's /etc.
type etcEntry struct {
	name   string // relative to /etc
	st     unix.Stat_t
	target string // of a symlink, once it was read
}

// listEtc lists the entries of etc that everybody on the host may read: files, symlinks and
// directories. A directory comes before its content.
func listEtc(etc *os.File) ([]etcEntry, error) {
	var list []etcEntry
	var walk func(dir *os.File, prefix string) error
	walk = func(dir *os.File, prefix string) error {
		names, err := dir.Readdirnames(-1)
		if err != nil {
			return err
		}
		slices.Sort(names)
		for _, name := range names {
			if len(list) == maxEtcEntries {
				return fmt.Errorf("/etc has more than %d entries", maxEtcEntries)
			}
			e := etcEntry{name: prefix + name}
			if e.st, err = linux.StatAt(dir, name); err != nil {
				continue // it may have been removed with its package
			}
			switch e.st.Mode & unix.S_IFMT {
			case unix.S_IFLNK:
				list = append(list, e)
			case unix.S_IFREG:
				if _, ours := genericEtc[e.name]; isPublic(e.st) && !ours && !slices.Contains(perBoxEtc, e.name) {
					list = append(list, e)
				}
			case unix.S_IFDIR:
				if !isPublic(e.st) {
					continue
				}
				sub, err := openListed(dir, name)
				if err != nil {
					continue // something is mounted on it, which is not part of /etc
				}
				list = append(list, e)
				err = walk(sub, e.name+"/")
				sub.Close()
				if err != nil {
					return err
				}
			}
		}
		return nil
	}
	return list, walk(etc, "")
}

// etcCopy is a copy of the public part of /etc that is being made.
type etcCopy struct {
	root     string // of the host
	src      *os.File
	dst      *filler
	packages packagedEtc
	shown    map[string]bool // names, relative to /etc, in the copy
	sources  []etcEntry      // what it depends on, with the status before reading
	bytes    int
}

// fillPublicEtc copies what boxes may see of src to the directory dst, and adds the files that
// are generated for boxes. It returns what the result depends on: the directories of src, and
// the files that were copied.
func fillPublicEtc(root string, src *os.File, dst *filler) ([]etcEntry, error) {
	top, err := linux.StatAt(src, ".")
	if err != nil {
		return nil, err
	}
	list, err := listEtc(src)
	if err != nil {
		return nil, err
	}
	c := &etcCopy{root: root, src: src, dst: dst, packages: readPackages(root), shown: map[string]bool{}}
	for name, content := range genericEtc {
		c.parents(name, nil)
		dst.write(name, 0o644, []byte(content))
		c.shown[name] = true
	}
	for _, name := range perBoxEtc {
		dst.symlink(name, "../"+perBoxDir+"/"+name)
		c.shown[name] = true
	}
	c.sources = append(c.sources, etcEntry{name: ".", st: top})
	var links []etcEntry
	dirs := map[string]unix.Stat_t{}
	for _, e := range list {
		switch {
		case isDir(e.st):
			dirs[e.name] = e.st
			c.sources = append(c.sources, e)
		case c.shown[e.name]: // generated
		case e.st.Mode&unix.S_IFMT == unix.S_IFLNK:
			if target, err := linux.ReadlinkAt(src, e.name); err == nil {
				e.target = target
				links = append(links, e)
			}
		default:
			c.file(e, dirs)
		}
	}
	// A symlink to another symlink is shown if the other one is.
	for more := true; more; {
		more = false
		links = slices.DeleteFunc(links, func(e etcEntry) bool {
			if !c.leadsToShown(e) {
				return false
			}
			c.parents(e.name, dirs)
			c.dst.symlink(e.name, e.target)
			c.shown[e.name], more = true, true
			return true
		})
	}
	return c.sources, dst.err
}

// file copies a file if boxes may see it.
func (c *etcCopy) file(e etcEntry, dirs map[string]unix.Stat_t) {
	if e.st.Size > maxEtcFile || c.bytes+int(e.st.Size) > maxEtcBytes {
		return
	}
	content, err := readBeneath(c.src, e.name)
	if err != nil || !c.isFor(e.name, content) {
		return
	}
	c.bytes += len(content)
	c.parents(e.name, dirs)
	c.dst.write(e.name, e.st.Mode&0o755, withProxy(e.name, content))
	c.shown[e.name] = true
	c.sources = append(c.sources, e)
}

// isFor reports whether boxes may see a file.
func (c *etcCopy) isFor(name string, content []byte) bool {
	packaged, unchanged := c.packages.has(name, content)
	switch {
	case unchanged:
		return !holdsSecret(name, content)
	case packaged, isGenerated(name), len(c.packages) == 0 && isExpected(name):
		return !mayHoldSecret(name, content)
	}
	return false
}

// leadsToShown reports whether a symlink leads into the system directories of the host, or
// to something in the copy of /etc.
func (c *etcCopy) leadsToShown(e etcEntry) bool {
	target := e.target
	if !path.IsAbs(target) {
		target = path.Join("/etc", path.Dir(e.name), target)
	}
	target = path.Clean(target)
	if name, ok := strings.CutPrefix(target, "/etc/"); ok {
		return c.shown[name]
	}
	first, _, _ := strings.Cut(target[1:], "/")
	if !slices.Contains(systemDirs, first) {
		return isGenerated(e.name)
	}
	_, err := os.Lstat(filepath.Join(c.root, target))
	return err == nil
}

// parents creates the directories above name, with the modes in dirs or else 0755.
func (c *etcCopy) parents(name string, dirs map[string]unix.Stat_t) {
	for i, char := range name {
		if dir := name[:i]; char == '/' && !c.shown[dir] {
			mode := uint32(0o755)
			if st, ok := dirs[dir]; ok {
				mode &= st.Mode
			}
			c.dst.mkdir(dir, mode)
			c.shown[dir] = true
		}
	}
}

// readBeneath reads a file of at most maxEtcFile bytes, beneath dir and through no symlink.
func readBeneath(dir *os.File, name string) ([]byte, error) {
	file, err := linux.Openat2(dir, name, unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
	if err != nil {
		return nil, err
	}
	defer file.Close()
	st, err := linux.Fstat(file)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || !isPublic(st)) {
		err = fs.ErrPermission // it was replaced meanwhile
	}
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.Grow(int(min(st.Size, maxEtcFile)) + bytes.MinRead)
	_, err = b.ReadFrom(io.LimitReader(file, maxEtcFile))
	return b.Bytes(), err
}

// openListed opens the directory name of dir for listing. Anything else, including a symlink,
// is an error, and so is a mount point (EXDEV).
func openListed(dir *os.File, name string) (*os.File, error) {
	return linux.Openat2(dir, name, unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_NO_XDEV})
}
