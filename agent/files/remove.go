package files

import (
	"errors"
	"io"
	"os"

	"github.com/boxd/boxd/agent/files/proto"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// remove removes a name; it does not follow a symlink.
func (o *operation) remove() (proto.Reply, error) {
	dir, name, err := openParent(o.path)
	if err != nil {
		return proto.Reply{}, err
	}
	defer dir.Close()
	err = unlink(dir, name)
	if !errors.Is(err, unix.ENOTEMPTY) || !o.flag(0, "recursive") {
		return proto.Reply{}, err
	}
	for range retries {
		if err := removeTree(dir, name); err != nil {
			return proto.Reply{}, err
		}
		// Something else may have replaced the directory.
		switch err := unlink(dir, name); {
		case err == nil || errors.Is(err, unix.ENOENT):
			return proto.Reply{}, nil
		case !errors.Is(err, unix.ENOTEMPTY):
			return proto.Reply{}, err
		}
	}
	return proto.Reply{}, unix.EBUSY
}

// retries bounds how often a step is repeated with which other processes interfere.
const retries = 100

// unlink removes a file or an empty directory, whichever name is at the moment.
func unlink(dir *os.File, name string) error {
	at := func(flags int) error {
		return linux.Retry(func() error { return unix.Unlinkat(int(dir.Fd()), name, flags) })
	}
	for range retries {
		if err := at(0); err != unix.EISDIR {
			return err
		}
		switch err := at(unix.AT_REMOVEDIR); err {
		case unix.ENOTDIR:
		case unix.EEXIST: // rmdir(2): some file systems return this
			return unix.ENOTEMPTY
		default:
			return err
		}
	}
	return unix.EBUSY
}

// identity tells one directory from another.
type identity struct{ dev, ino uint64 }

// level is a directory that was entered: its name, and the directory above it.
type level struct {
	name  string
	above identity
}

// walk is a directory tree that is being removed. It holds a single descriptor, however deep
// it goes, and returns through "..". Other processes may move and replace directories
// meanwhile, so it checks that it comes back to the directory that it came from.
type walk struct {
	dir    *os.File
	mount  uint64 // the mount that it does not leave
	levels []level
}

// removeTree removes the directory name with its content. It stays within the file system:
// mounts in the tree are kept, and so are the directories that lead to them.
func removeTree(parent *os.File, name string) error {
	dir, err := linux.Dup(parent)
	if err != nil {
		return err
	}
	w := &walk{dir: dir}
	defer func() { w.dir.Close() }()
	if w.mount, err = mountOf(dir); err != nil {
		return err
	}
	if err := w.enter(name); err != nil {
		return ignoreGone(err)
	}
	for len(w.levels) > 0 {
		full, err := w.clear()
		switch {
		case err != nil:
			return err
		case full == "":
			err = w.leave()
		default:
			err = ignoreGone(w.enter(full))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// enter descends into name, which must be a directory and not a symlink to one.
func (w *walk) enter(name string) error {
	above, err := identityOf(w.dir)
	if err != nil {
		return err
	}
	dir, err := linux.OpenAt(w.dir, name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return w.failed("opening", name, err)
	}
	if mount, err := mountOf(dir); err != nil || mount != w.mount {
		dir.Close()
		return w.failed("removing", name, errors.Join(err, unix.EBUSY))
	}
	w.dir.Close()
	w.dir = dir
	w.levels = append(w.levels, level{name, above})
	return nil
}

// leave ascends and removes the directory that it leaves, unless it was filled again.
func (w *walk) leave() error {
	last := w.levels[len(w.levels)-1]
	up, err := linux.OpenAt(w.dir, "..", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil && len(w.levels) == 1 {
		// The directory above may be one that can be searched but not read.
		up, err = linux.OpenAt(w.dir, "..", unix.O_PATH|unix.O_DIRECTORY)
	}
	if err != nil {
		return w.failed("opening", "..", err)
	}
	w.dir.Close()
	w.dir = up
	w.levels = w.levels[:len(w.levels)-1]
	if id, err := identityOf(up); err != nil || id != last.above {
		return w.failed("removing", last.name, errors.Join(err, unix.ESTALE)) // it was moved
	}
	err = unlink(up, last.name)
	if errors.Is(err, unix.ENOTEMPTY) {
		return ignoreGone(w.enter(last.name))
	}
	return ignoreGone(w.failed("removing", last.name, err))
}

// clear removes the files and empty directories of the directory. It returns the name of a
// subdirectory that is not empty, or "" if nothing is left.
func (w *walk) clear() (string, error) {
	for {
		// From the start again, because the entries read before have been removed.
		if _, err := w.dir.Seek(0, io.SeekStart); err != nil {
			return "", err
		}
		names, err := w.dir.Readdirnames(1024)
		if errors.Is(err, io.EOF) {
			return "", nil
		}
		if err != nil {
			return "", w.failed("reading", "", err)
		}
		for _, name := range names {
			err := unlink(w.dir, name)
			if errors.Is(err, unix.ENOTEMPTY) {
				return name, nil
			}
			if err := ignoreGone(w.failed("removing", name, err)); err != nil {
				return "", err
			}
		}
	}
}

// failed adds to err where in the tree it happened; nil stays nil.
func (w *walk) failed(step, name string, err error) error {
	if err == nil {
		return nil
	}
	p := ""
	for _, l := range w.levels {
		p += l.name + "/"
	}
	return &stepError{step, shorten(p + name), err}
}

// shorten cuts the beginning of a path that would not fit in a reply.
func shorten(p string) string {
	const most = 1024
	if len(p) > most {
		return "…" + p[len(p)-most:]
	}
	return p
}

// ignoreGone drops the error of a name that another process has removed or replaced. The
// next reading of the directory finds the replacement.
func ignoreGone(err error) error {
	if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) {
		return nil
	}
	return err
}

func identityOf(f *os.File) (identity, error) {
	st, err := linux.Fstat(f)
	return identity{uint64(st.Dev), st.Ino}, err
}

// mountOf returns an ID of the mount, which distinguishes mounts of one file system too.
func mountOf(f *os.File) (uint64, error) {
	st, err := linux.Statx(f, unix.STATX_MNT_ID)
	return st.Mnt_id, err
}
