// Package programs hands a launcher the programs that it needs besides its own, boxd-init: those that
// PID 1 of a box executes.
//
// Whoever starts a launcher, or its keeper, opens them at the same time as boxd-init, and passes
// the descriptors on. A launcher that is started again after an upgrade, from the copy of boxd-init that
// its keeper runs from, still has the programs of its own build.
package programs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// Names of the programs, which are files beside each other, and the names of their copies in memory.
const (
	Init     = "boxd-init"
	Agent    = "boxd-agent"    // PID 1 of a box, and the file operations
	Unpacker = "boxd-unpacker" // the same for boxes that unpack layers of images
)

// Option is the option of boxd-init by which it learns the descriptors of Files.
const Option = "--programs"

// Files are the programs besides boxd-init, open for reading.
type Files struct{ Agent, Unpacker *os.File }

// Beside opens the programs in the directory of init, which is boxd-init. It refuses a program that
// somebody can write who cannot write boxd-init. The caller closes the files.
func Beside(init *os.File) (f Files, err error) {
	path, err := os.Readlink(linux.FdPath(init))
	if err != nil {
		return f, err
	}
	dir, err := os.OpenFile(filepath.Dir(path), unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		return f, err
	}
	defer dir.Close()
	there, err := openIn(dir, filepath.Base(path))
	if err != nil {
		return f, err
	}
	defer there.Close()
	want, err := init.Stat()
	if err != nil {
		return f, err
	}
	got, err := there.Stat()
	if err != nil {
		return f, err
	}
	if !os.SameFile(want, got) {
		return f, fmt.Errorf("%s has been replaced", path)
	}
	for name, to := range map[string]**os.File{Agent: &f.Agent, Unpacker: &f.Unpacker} {
		if *to, err = openIn(dir, name); err == nil {
			err = asSafe(*to, init)
		}
		if err != nil {
			f.Close()
			return Files{}, fmt.Errorf("opening %s, which belongs beside %s: %w", filepath.Join(filepath.Dir(path), name), path, err)
		}
	}
	return f, nil
}

func openIn(dir *os.File, name string) (*os.File, error) {
	return linux.Openat2(dir, name, unix.OpenHow{Flags: unix.O_RDONLY | unix.O_NONBLOCK | unix.O_NOFOLLOW, Resolve: unix.RESOLVE_BENEATH})
}

// asSafe checks that nobody can write program who cannot write init.
func asSafe(program, init *os.File) error {
	var p, i unix.Stat_t
	if err := errors.Join(unix.Fstat(int(program.Fd()), &p), unix.Fstat(int(init.Fd()), &i)); err != nil {
		return err
	}
	var magic [4]byte
	_, err := program.ReadAt(magic[:], 0)
	switch more := p.Mode &^ i.Mode; {
	case p.Mode&unix.S_IFMT != unix.S_IFREG:
		return errors.New("is not a regular file")
	case p.Uid != 0 && p.Uid != i.Uid:
		return fmt.Errorf("belongs to user %d, and boxd-init to user %d: must belong to the same user, or to root", p.Uid, i.Uid)
	case more&0o022 != 0, p.Mode&0o020 != 0 && p.Gid != i.Gid:
		return fmt.Errorf("has mode %#o: must not be writable for more users than boxd-init", p.Mode&0o7777)
	case err != nil || string(magic[:]) != "\x7fELF":
		return errors.New("is not a program")
	}
	return nil
}

// Args returns the option with which a child learns that it has f from descriptor first on.
func Args(first int) []string { return []string{Option, fmt.Sprintf("%d,%d", first, first+1)} }

// List returns f in the order in which a child gets it.
func (f Files) List() []*os.File { return []*os.File{f.Agent, f.Unpacker} }

// Keep makes this process's next program inherit f, and returns the option that tells it.
func (f Files) Keep() ([]string, error) {
	for _, file := range f.List() {
		if _, err := unix.FcntlInt(file.Fd(), unix.F_SETFD, 0); err != nil {
			return nil, os.NewSyscallError("fcntl(F_SETFD)", err)
		}
	}
	return []string{Option, fmt.Sprintf("%d,%d", f.Agent.Fd(), f.Unpacker.Fd())}, nil
}

// Inherited returns the files that value, of Option, names. No child inherits them further.
func Inherited(value string) (f Files, err error) {
	numbers := strings.Split(value, ",")
	for i, to := range []**os.File{&f.Agent, &f.Unpacker} {
		fd := -1
		if len(numbers) == 2 {
			fd, err = strconv.Atoi(numbers[i])
		}
		if err != nil || fd < 3 {
			return Files{}, fmt.Errorf("option %s %q: must be two numbers of descriptors", Option, value)
		}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
			return Files{}, fmt.Errorf("option %s %q: descriptor %d: %w", Option, value, fd, err)
		}
		*to = os.NewFile(uintptr(fd), "program")
	}
	return f, nil
}

// Close closes f.
func (f Files) Close() {
	for _, file := range f.List() {
		file.Close() // a nil file is fine
	}
}
