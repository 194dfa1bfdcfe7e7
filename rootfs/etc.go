package rootfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// addEtc makes the /etc that boxes share.
func (h *Host) addEtc(top *os.File, root string) error {
	f := &filler{top: top}
	f.learnUmask("etc", 0o755)
	etc := f.into("etc")
	if etc.err != nil {
		return etc.err
	}
	defer etc.top.Close()
	src, err := os.OpenFile(filepath.Join(root, "etc"), unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer src.Close()
	for _, name := range expandEtc(src) {
		if err := addEtcName(src, etc, name); err != nil && !isAbsent(err) {
			return err
		}
	}
	for name, content := range genericEtc {
		etc.write(name, 0o644, []byte(content))
	}
	for _, name := range perBoxEtc {
		etc.symlink(name, "../"+perBoxDir+"/"+name)
	}
	if etc.err != nil {
		return etc.err
	}
	return h.seal(top, "etc", attrReadOnly|unix.MOUNT_ATTR_NOEXEC)
}

// isAbsent says that the host does not have a name.
func isAbsent(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}

// expandEtc returns etcNames with patterns replaced by what they match in the
// directory etc.
func expandEtc(etc *os.File) []string {
	var names []string
	listing, _ := etc.Readdirnames(-1) // if it cannot be listed no pattern matches
	for _, name := range etcNames {
		if !strings.Contains(name, "*") {
			names = append(names, name)
			continue
		}
		for _, found := range listing {
			if ok, _ := path.Match(name, found); ok {
				names = append(names, found)
			}
		}
	}
	return names
}

// addEtcName puts name of the directory src (the host's /etc) into dst.
func addEtcName(src *os.File, dst *filler, name string) error {
	dir, base := path.Split(name)
	if dir == "" {
		return addEtcEntry(src, dst, base)
	}
	parent, err := linux.Openat2(src, dir, unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
	if err != nil {
		return err
	}
	defer parent.Close()
	if _, err := linux.StatAt(parent, base); err != nil {
		return err // before an empty directory is made for it
	}
	sub, err := makeParents(dst, path.Clean(dir))
	if err != nil {
		return err
	}
	defer sub.top.Close()
	return addEtcEntry(parent, sub, base)
}

// makeParents returns a filler for the directory dir, made as needed, whose top
// the caller closes.
func makeParents(dst *filler, dir string) (*filler, error) {
	for i, c := range dir + "/" {
		if c != '/' {
			continue
		}
		if _, err := linux.StatAt(dst.top, dir[:i]); errors.Is(err, fs.ErrNotExist) {
			dst.mkdir(dir[:i], 0o755)
		}
	}
	sub := dst.into(dir)
	return sub, sub.err
}

// addEtcEntry copies name of src into dst, or binds it if it is a large
// directory.
func addEtcEntry(src *os.File, dst *filler, name string) error {
	st, err := linux.StatAt(src, name)
	if err != nil {
		return err
	}
	if !isDir(st) {
		return copyEntry(src, dst, name, st)
	}
	if !isPublic(st) {
		return nil
	}
	dir, err := linux.Openat2(src, name, listed)
	if err != nil {
		return err
	}
	defer dir.Close()
	if countEntries(dir, maxCopiedDir) <= maxCopiedDir {
		return copyEntry(src, dst, name, st)
	}
	dst.mkdir(name, 0o755)
	if dst.err != nil {
		return dst.err
	}
	return cloneTo(dir, dst.top, name, attrReadOnly|unix.MOUNT_ATTR_NOEXEC)
}

// countEntries counts what is in the directory dir and in its subdirectories, but
// not much beyond limit.
func countEntries(dir *os.File, limit int) int {
	names, _ := dir.Readdirnames(limit + 1)
	dir.Seek(0, io.SeekStart)
	count := len(names)
	for _, name := range names {
		if count > limit {
			break
		}
		if sub, err := openListed(dir, name); err == nil {
			count += countEntries(sub, limit-count)
			sub.Close()
		}
	}
	return count
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
