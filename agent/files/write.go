package files

import (
	"cmp"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"strings"

	"github.com/boxd/boxd/agent/files/proto"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// newMode is the default mode of a new file.
const newMode = 0o644

// write replaces a file, or appends to it.
func (o *operation) write() (proto.Reply, error) {
	mode, err := o.number(0, 8)
	if err != nil {
		return proto.Reply{}, err
	}
	if strings.HasSuffix(o.path, "/") {
		return proto.Reply{}, unix.EISDIR
	}
	if o.flag(2, "parents") {
		dir, _, err := split(o.path)
		if err != nil {
			return proto.Reply{}, err
		}
		if err := makeAll(dir, 0); err != nil {
			return proto.Reply{}, err
		}
	}
	t, err := findTarget(o.path)
	if err != nil {
		return proto.Reply{}, err
	}
	defer t.close()
	var st unix.Stat_t
	if o.flag(1, "append") {
		st, err = t.append(o.stdin, uint32(mode))
	} else {
		st, err = t.replace(func(f *os.File) error { _, err := copyContent(f, o.stdin); return err }, uint32(mode))
	}
	if err != nil {
		return proto.Reply{}, err
	}
	return proto.Reply{Info: info(st)}, nil
}

// target is the place to which the symlinks of a path lead, and where its file is written.
type target struct {
	dir   *os.File // O_PATH
	name  string
	found *os.File       // the existing file, O_PATH; nil if there is none
	mode  uint32         // of found
	time  *unix.Timespec // of the new content; nil: now
}

func (t *target) close() {
	t.dir.Close()
	if t.found != nil {
		t.found.Close()
	}
}

// maxLinks is MAXSYMLINKS of the kernel's include/linux/namei.h.
const maxLinks = 40

// findTarget follows the symlinks of p to a regular file, or to a place without a file.
func findTarget(p string) (*target, error) {
	dir, name, err := openParent(p)
	if err != nil {
		return nil, err
	}
	for range maxLinks {
		t := &target{dir: dir, name: name}
		t.found, err = linux.OpenAt(dir, name, unix.O_PATH|unix.O_NOFOLLOW)
		if errors.Is(err, unix.ENOENT) {
			return t, nil
		}
		var st unix.Stat_t
		if err == nil {
			st, err = linux.Fstat(t.found)
		}
		if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG {
			t.mode = st.Mode & 0o777
			return t, nil
		}
		if err == nil && st.Mode&unix.S_IFMT != unix.S_IFLNK {
			err = typeError{st.Mode}
		}
		if err == nil {
			dir, name, err = followLink(dir, t.found)
		}
		t.close()
		if err != nil {
			return nil, err
		}
	}
	dir.Close()
	return nil, unix.ELOOP
}

// followLink returns the directory and the name that a symlink in dir leads to.
func followLink(dir, link *os.File) (*os.File, string, error) {
	text, err := linux.ReadlinkAt(link, "")
	if err != nil {
		return nil, "", err
	}
	above, name, err := split(text)
	if err != nil {
		return nil, "", unix.EISDIR // the text ends in "/", "." or ".."
	}
	if strings.HasPrefix(above, "/") {
		f, err := openPath(above, unix.O_DIRECTORY)
		return f, name, err
	}
	f, err := linux.OpenAt(dir, above, unix.O_PATH|unix.O_DIRECTORY)
	return f, name, err
}

// replace has fill write a new file and then replaces the target with it atomically.
func (t *target) replace(fill func(*os.File) error, mode uint32) (st unix.Stat_t, err error) {
	f, name, err := t.temporary()
	if err != nil {
		return st, err
	}
	defer f.Close()
	defer func() {
		if err != nil && name != "" {
			_ = unlink(t.dir, name)
		}
	}()
	if err := fill(f); err != nil {
		return st, err
	}
	if mode == 0 {
		mode = newMode
		if t.found != nil {
			mode = t.mode
		}
	}
	if err := setMode(f, mode); err != nil {
		return st, err
	}
	if t.time != nil {
		times := []unix.Timespec{*t.time, *t.time}
		if err := linux.Retry(func() error { return unix.UtimesNanoAt(unix.AT_FDCWD, linux.FdPath(f), times, 0) }); err != nil {
			return st, err
		}
	}
	if name == "" {
		if name, err = t.link(f); err != nil {
			return st, err
		}
	}
	if err = linux.RenameAt(t.dir, name, t.dir, t.name); err != nil {
		return st, err
	}
	return linux.Fstat(f)
}

// temporary makes a file next to the target. The file has no name, so nothing of it is left
// whatever happens; if the file system does not support that, it has a temporary name.
func (t *target) temporary() (f *os.File, name string, err error) {
	f, err = linux.OpenAt(t.dir, ".", unix.O_TMPFILE|unix.O_WRONLY)
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) && !errors.Is(err, unix.ENOENT) {
		return f, "", err
	}
	name = temporaryName()
	f, err = linux.CreateAt(t.dir, name, 0o600)
	return f, name, err
}

// link gives a temporary name to a file without a name.
func (t *target) link(f *os.File) (string, error) {
	name := temporaryName()
	err := linux.Retry(func() error {
		return unix.Linkat(unix.AT_FDCWD, linux.FdPath(f), int(t.dir.Fd()), name, unix.AT_SYMLINK_FOLLOW)
	})
	return name, err
}

// temporaryName asks the kernel itself. Linking crypto/rand would give every box a megabyte of code to load,
// and an array of 32 MiB.
func temporaryName() string {
	var random [16]byte
	_ = linux.Retry(func() error { _, err := unix.Getrandom(random[:], 0); return err }) // it fails for no other reason
	return ".boxd-" + hex.EncodeToString(random[:])
}

// append appends to the target. If that fails, it truncates the target to its former size,
// unless another process has appended something meanwhile.
func (t *target) append(content io.Reader, mode uint32) (st unix.Stat_t, err error) {
	f, start, err := t.openAppend(mode)
	if err != nil {
		return st, err
	}
	defer f.Close()
	n, err := copyContent(f, content)
	if err != nil {
		if now, e := linux.Fstat(f); e == nil && now.Size == start+n {
			_ = linux.Retry(func() error { return unix.Ftruncate(int(f.Fd()), start) })
		}
		if t.found == nil {
			_ = unlink(t.dir, t.name)
		}
		return st, err
	}
	return linux.Fstat(f)
}

// openAppend opens the target, or makes it, and returns its size.
func (t *target) openAppend(mode uint32) (*os.File, int64, error) {
	if t.found != nil {
		f, st, err := reopen(t.found, unix.O_WRONLY|unix.O_APPEND)
		return f, st.Size, err
	}
	f, err := linux.CreateAt(t.dir, t.name, 0o600)
	if err != nil {
		return nil, 0, err
	}
	if err := setMode(f, cmp.Or(mode, newMode)); err != nil {
		f.Close()
		return nil, 0, err
	}
	return f, 0, nil
}

// copyContent writes content, which comes in chunks, to f, and returns how many bytes it has
// written. Incomplete content is an error.
func copyContent(f *os.File, content io.Reader) (int64, error) {
	buf, total := make([]byte, proto.MaxChunk), int64(0)
	for {
		chunk, err := proto.ReadChunk(content, buf)
		if errors.Is(err, io.EOF) {
			return total, nil
		}
		if err != nil {
			return total, errors.Join(err, unix.ECANCELED)
		}
		n, err := f.Write(chunk)
		total += int64(n)
		if err != nil {
			return total, err
		}
	}
}

// mkdir makes a directory, and with "parents" the missing ones above it.
func (o *operation) mkdir() (proto.Reply, error) {
	mode, err := o.number(0, 8)
	if err != nil {
		return proto.Reply{}, err
	}
	if o.flag(1, "parents") {
		return proto.Reply{}, makeAll(o.path, uint32(mode))
	}
	return proto.Reply{}, makeDir(o.path, uint32(mode))
}

// makeDir makes a directory with mode; 0 means 0755.
func makeDir(p string, mode uint32) error {
	err := linux.Retry(func() error { return unix.Mkdir(p, 0o755) })
	if err != nil || mode == 0 {
		return err
	}
	made, err := open(strings.TrimRight(p, "/"), unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW)
	if err != nil {
		return err
	}
	defer made.Close()
	return setMode(made, mode)
}

// setMode changes the mode of an open file, wherever it is by now.
func setMode(f *os.File, mode uint32) error {
	return linux.Retry(func() error { return unix.Fchmod(int(f.Fd()), mode) })
}

// makeAll creates p and its missing parents. p may exist.
func makeAll(p string, mode uint32) error {
	err := makeDir(p, mode)
	if err == unix.ENOENT {
		dir, _, e := split(p)
		if e != nil || dir == "." {
			return err
		}
		if e := makeAll(dir, 0); e != nil {
			return e
		}
		err = makeDir(p, mode)
	}
	if err != unix.EEXIST {
		return err
	}
	// Something exists at p. If it is a file or a dangling symlink, that is an error.
	f, e := openPath(p, unix.O_DIRECTORY)
	if e != nil {
		return err
	}
	return f.Close()
}

// symlink makes a symlink, replacing a file or symlink.
func (o *operation) symlink() (proto.Reply, error) {
	dir, name, err := openParent(o.path)
	if err != nil {
		return proto.Reply{}, err
	}
	defer dir.Close()
	return proto.Reply{}, makeSymlink(o.args[0], dir, name)
}

func makeSymlink(text string, dir *os.File, name string) error {
	temporary := temporaryName()
	if err := linux.SymlinkAt(text, dir, temporary); err != nil {
		return err
	}
	if err := linux.RenameAt(dir, temporary, dir, name); err != nil {
		_ = unlink(dir, temporary)
		return err
	}
	return nil
}

// rename renames a file, symlink or directory. Only with "replace" may the new name be taken:
// by a file or symlink, or by an empty directory if a directory is renamed.
func (o *operation) rename() (proto.Reply, error) {
	dir, name, err := openParent(o.path)
	if err != nil {
		return proto.Reply{}, err
	}
	defer dir.Close()
	to, newName, err := openParent(o.args[0])
	if err != nil {
		return proto.Reply{}, &stepError{"opening", shorten(o.args[0]), err}
	}
	defer to.Close()
	if o.flag(1, "replace") {
		return proto.Reply{}, linux.Retry(func() error { return unix.Renameat(int(dir.Fd()), name, int(to.Fd()), newName) })
	}
	err = linux.Retry(func() error {
		return unix.Renameat2(int(dir.Fd()), name, int(to.Fd()), newName, unix.RENAME_NOREPLACE)
	})
	if err == unix.EINVAL { // also of a file system that does not know RENAME_NOREPLACE, such as gVisor's of the host's files
		err = renameInSteps(dir, name, to, newName)
	}
	return proto.Reply{}, err
}

// renameInSteps renames without RENAME_NOREPLACE. It links a file to its new name, which fails if the name is taken, and removes the
// old one. For a directory it makes an empty one with the new name, and renames over that; if another process swaps its own
// empty directory in between the two steps, the rename replaces that one. A kill between the steps leaves both names, or an empty
// directory.
func renameInSteps(dir *os.File, name string, to *os.File, newName string) error {
	var st unix.Stat_t
	if err := linux.Retry(func() error { return unix.Fstatat(int(dir.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW) }); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		if err := linux.Retry(func() error { return unix.Linkat(int(dir.Fd()), name, int(to.Fd()), newName, 0) }); err != nil {
			return err
		}
		err := linux.Retry(func() error { return unix.Unlinkat(int(dir.Fd()), name, 0) })
		if err != nil {
			_ = unix.Unlinkat(int(to.Fd()), newName, 0)
		}
		return err
	}
	if err := linux.Retry(func() error { return unix.Mkdirat(int(to.Fd()), newName, 0o700) }); err != nil {
		return err
	}
	err := linux.Retry(func() error { return unix.Renameat(int(dir.Fd()), name, int(to.Fd()), newName) })
	if err != nil {
		_ = unix.Unlinkat(int(to.Fd()), newName, unix.AT_REMOVEDIR)
	}
	return err
}
