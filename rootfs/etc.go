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

// The rule for what a box sees of the host's /etc. Everything in question may be read by
// everybody on the host, below directories that everybody may list. Of that a box sees
//
//   - files that a package brought and that are as they were in the package, since whoever
//     has the package has them;
//   - files that a package brought and somebody changed, and a few files that are
//     generated on each system (generatedEtc), unless they may hold a secret;
//   - symlinks into the host's system directories, and to what a box sees of /etc.
//
// So what nobody knows about, such as /etc/foo.key or /etc/myapp/token.conf, stays away. Where no
// package database can be read, unpackagedEtc says what counts as brought by a package.
// Whoever brought it, a file that certainly is a secret is left out.
//
// The result is a copy, made once per state of /etc: what is planted later is not in it.

// etcEntry is something in the host's /etc.
type etcEntry struct {
	name   string // relative to /etc
	st     unix.Stat_t
	target string // of a symlink, once it is read
}

// listEtc lists what of etc everybody on the host may read: files, symlinks, and
// directories before what is in them.
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
				continue // a package may be removed meanwhile
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
					continue // what is mounted there is not part of /etc
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

// etcCopy is a copy of the public part of /etc in the making.
type etcCopy struct {
	root     string // of the host
	src      *os.File
	dst      *filler
	packages packagedEtc
	shown    map[string]bool // names, relative to /etc, that are in the copy
	sources  []etcEntry      // what it depends on, as it was before it was read
	bytes    int
}

// fillPublicEtc puts what boxes may see of src into the directory dst, together with the files
// that are generated for boxes. It returns what the result depends on: the directories of
// src, and the files that were taken.
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
		case c.shown[e.name]: // ours
		case isDir(e.st):
			dirs[e.name] = e.st
			c.sources = append(c.sources, e)
		case e.st.Mode&unix.S_IFMT == unix.S_IFLNK:
			if target, err := linux.ReadlinkAt(src, e.name); err == nil {
				e.target = target
				links = append(links, e)
			}
		default:
			c.file(e, dirs)
		}
	}
	// A symlink to a symlink is shown if that one is.
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

// file shows a file if the rule says so.
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
	c.dst.write(e.name, e.st.Mode&0o755, content)
	c.shown[e.name] = true
	c.sources = append(c.sources, e)
}

// isFor says whether boxes may see a file.
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

// leadsToShown says that a symlink leads into the system directories of the host, or to
// something of /etc that is in the copy.
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

// parents makes the directories above name.
func (c *etcCopy) parents(name string, dirs map[string]unix.Stat_t) {
	for i, char := range name {
		if dir := name[:i]; char == '/' && !c.shown[dir] {
			c.dst.mkdir(dir, dirs[dir].Mode&0o755)
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
		err = fs.ErrPermission // it has been replaced meanwhile
	}
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.Grow(int(min(st.Size, maxEtcFile)) + bytes.MinRead)
	_, err = b.ReadFrom(io.LimitReader(file, maxEtcFile))
	return b.Bytes(), err
}

// listed is how directories are opened for listing; anything else, a symlink
// too, is an error.
var listed = unix.OpenHow{Flags: unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW}

// openListed opens the directory name of dir for listing. If something is
// mounted there it fails with EXDEV.
func openListed(dir *os.File, name string) (*os.File, error) {
	how := listed
	how.Resolve = unix.RESOLVE_NO_XDEV
	return linux.Openat2(dir, name, how)
}
