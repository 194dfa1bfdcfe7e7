package rootfs

import (
	"errors"
	"io"
	"os"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

func isDir(st unix.Stat_t) bool { return st.Mode&unix.S_IFMT == unix.S_IFDIR }

// isPublic says that everybody on the host may read a file, or list and search
// a directory. Nothing else of /etc gets into a box.
func isPublic(st unix.Stat_t) bool {
	if isDir(st) {
		return st.Mode&0o005 == 0o005
	}
	return st.Mode&0o004 != 0
}

// copyEntry copies name of the directory src, with status st and with all that
// is beneath it. What is neither public nor a file, directory or symlink is left
// out, and so are files of more than maxCopiedFile bytes.
func copyEntry(src *os.File, dst *filler, name string, st unix.Stat_t) error {
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFLNK:
		target, err := linux.ReadlinkAt(src, name)
		if err != nil {
			return err
		}
		dst.symlink(name, target)
	case unix.S_IFREG:
		return copyFile(src, dst, name, st)
	case unix.S_IFDIR:
		return copyDir(src, dst, name, st)
	}
	return dst.err
}

func copyFile(src *os.File, dst *filler, name string, st unix.Stat_t) error {
	if !isPublic(st) || st.Size > maxCopiedFile {
		return nil
	}
	file, err := linux.Openat2(src, name, unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK})
	if err != nil {
		return err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxCopiedFile))
	if err != nil {
		return err
	}
	dst.write(name, st.Mode&0o755, content)
	return dst.err
}

func copyDir(src *os.File, dst *filler, name string, st unix.Stat_t) error {
	if !isPublic(st) {
		return nil
	}
	dir, err := openListed(src, name)
	if errors.Is(err, unix.EXDEV) {
		dst.mkdir(name, st.Mode&0o755) // what is mounted there is not part of src
		return dst.err
	}
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

// copyAll copies what is in the directory src, which is open for reading, except
// the names in but.
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
		if err == nil {
			err = copyEntry(src, dst, name, st)
		}
		if err != nil && !isAbsent(err) { // a package may be removed meanwhile
			return err
		}
	}
	return nil
}
