package oci

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrUnusable says that no box can be built with a runtime: it is absent, not executable, not
// root's alone, too old, does not answer, or answers with something else.
var ErrUnusable = errors.New("unusable runtime")

func unusable(format string, args ...any) error {
	return fmt.Errorf("%w: %w", ErrUnusable, fmt.Errorf(format, args...))
}

// Dirs are the directories in which Find looks for a runtime: those of the system, and never
// the PATH of a caller.
var Dirs = []string{"/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin"}

// Find returns the path of the runtime called name, such as "runc", in the first of Dirs that has it.
func Find(name string) (path string, err error) {
	for _, dir := range Dirs {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		} else if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.ENOTDIR) {
			return "", unusable("%w", err)
		}
	}
	return "", unusable("there is no %s in %v: install it, or name its path", name, Dirs)
}

// File identifies the contents of a file, in the sense of make(1).
type File struct {
	dev, ino, size uint64
	mtime, ctime   unix.Timespec
}

// maxLinks is how many symlinks a path may pass, as in path_resolution(7).
const maxLinks = 40

// Check checks that the program at path, which must be absolute and cleaned, can be executed
// with the privileges of root: only root can write it, or put another program in its place. It
// follows symlinks. The result tells whether the program was replaced since an earlier Check.
func Check(path string) (File, error) {
	if path != filepath.Clean("/"+path) {
		return File{}, unusable("runtime %q: must be an absolute, cleaned path", path)
	}
	at, rest := "/", strings.Split(path, "/")
	for links := 0; ; {
		var st unix.Stat_t
		if err := unix.Lstat(at, &st); err != nil {
			return File{}, unusable("runtime %q: %w", path, &os.PathError{Op: "lstat", Path: at, Err: err})
		}
		roots := st.Uid == 0 && st.Mode&0o022 == 0
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK: // who may replace it depends on its directory, and on its owner if that is sticky
			if st.Uid != 0 {
				return File{}, unusable("runtime %q: symlink %q must belong to root, because root executes what it names", path, at)
			}
			target, err := os.Readlink(at)
			if links++; err != nil || links > maxLinks {
				return File{}, unusable("runtime %q: %w", path, cmp.Or(err, error(unix.ELOOP)))
			}
			rest = append(strings.Split(target, "/"), rest...)
			if at = filepath.Dir(at); filepath.IsAbs(target) {
				at = "/"
			}
		case unix.S_IFDIR:
			// In a directory with the sticky bit only root replaces what is root's (inode(7)), and what
			// follows has to be.
			if st.Uid != 0 || st.Mode&0o022 != 0 && (st.Mode&unix.S_ISVTX == 0 || len(rest) == 0) {
				return File{}, unusable("runtime %q: directory %q must belong to root, and be writable by root only or have the sticky bit, or another program could be put in its place", path, at)
			}
			if len(rest) == 0 {
				return File{}, unusable("runtime %q: is a directory", path)
			}
		case unix.S_IFREG:
			switch {
			case len(rest) > 0:
				return File{}, unusable("runtime %q: %w", path, &os.PathError{Op: "open", Path: at, Err: unix.ENOTDIR})
			case !roots:
				return File{}, unusable("runtime %q: must belong to root and be writable by root only (chown root, chmod go-w), because root executes it", at)
			case st.Mode&0o111 == 0:
				return File{}, unusable("runtime %q: is not executable (chmod +x)", at)
			}
			return File{dev: uint64(st.Dev), ino: st.Ino, size: uint64(st.Size), mtime: st.Mtim, ctime: st.Ctim}, nil
		default:
			return File{}, unusable("runtime %q: must be a regular file", at)
		}
		if len(rest) > 0 {
			at, rest = filepath.Join(at, rest[0]), rest[1:]
		}
	}
}
