package rootfs

import (
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

func isDir(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// isPublic reports whether everybody on the host may read a file, or list and search a
// directory. Boxes get nothing else of /etc.
func isPublic(st unix.Stat_t) bool {
	if isDir(st) {
		return st.Mode&0o005 == 0o005
	}
	return st.Mode&0o004 != 0
}

// copyEntry copies the entry name, with status st, of the directory src and everything beneath
// it. src is a directory of boxd with public content.
func copyEntry(src *os.File, dst *filler, name string, st unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		target, err := linux.ReadlinkAt(src, name)
		if err != nil {
			return err
		}
		dst.symlink(name, target)
	case unix.S_IFREG:
		content, err := readBeneath(src, name)
		if err != nil {
			return err
		}
		dst.write(name, st.Mode&0o755, content)
	case unix.S_IFDIR:
		dir, err := openListed(src, name)
		if err != nil {
			return err
		}
		defer dir.Close()
		dst.mkdir(name, st.Mode&0o755)
		sub := dst.into(name)
		if sub.err != nil {
			return sub.err
		}
		defer sub.top.Close()
		return copyAll(dir, sub)
	}
	return dst.err
}

// copyAll copies the content of the directory src, which is open for reading, except the
// names in but.
func copyAll(src *os.File, dst *filler, but ...string) error {
	names, err := src.Readdirnames(-1)
	if err != nil {
		return err
	}
	for _, name := range names {
		if slices.Contains(but, name) {
			continue
		}
		st, err := linux.StatAt(src, name)
		if err != nil {
			return err
		}
		if err := copyEntry(src, dst, name, st); err != nil {
			return err
		}
	}
	return nil
}
