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

	"github.com/boxd/boxd/internal/installed"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/sealed"
	"golang.org/x/sys/unix"
)

// Names of the programs, which are files beside each other, and the names of their copies in memory.
const (
	Init     = installed.Init
	Agent    = "boxd-agent"    // PID 1 of a box, and the file operations
	Unpacker = "boxd-unpacker" // the same for boxes that unpack layers of images
)

// Option is the option of boxd-init by which it learns the descriptors of Files.
const Option = "--programs"

// Files are the programs besides boxd-init, open for reading, and what they were when they were opened.
type Files struct {
	Agent, Unpacker           *os.File
	AgentStamp, UnpackerStamp Stamp
}

// Stamp is the state of a program when it was opened.
type Stamp sealed.State

func stampOf(f *os.File) (Stamp, error) {
	s, err := sealed.StateOf(f)
	return Stamp(s), err
}

// Check returns an error if f has been overwritten since s was taken. A file whose place another one has taken is as it
// was: that changes only its number of links and, with it, the time of its last change.
func (s Stamp) Check(f *os.File, name string) error {
	now, err := stampOf(f)
	if err != nil {
		return err
	}
	if now.Links != s.Links {
		now.Links, now.Changed = s.Links, s.Changed
	}
	if now != s {
		return fmt.Errorf("%s was overwritten; restart the launcher", name)
	}
	return nil
}

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
	for name, to := range map[string]struct {
		file  **os.File
		stamp *Stamp
	}{Agent: {&f.Agent, &f.AgentStamp}, Unpacker: {&f.Unpacker, &f.UnpackerStamp}} {
		if *to.file, err = openIn(dir, name); err == nil {
			*to.stamp, err = stampOf(*to.file)
		}
		if err == nil {
			err = asSafe(*to.file, init)
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
func (f Files) Args(first int) []string { return f.option(first, first+1) }

// option is the inverse of Inherited.
func (f Files) option(agent, unpacker int) []string {
	return []string{Option, fmt.Sprintf("%d:%s,%d:%s", agent, f.AgentStamp, unpacker, f.UnpackerStamp)}
}

func (s Stamp) String() string {
	return fmt.Sprintf("%d:%d:%d:%d:%d:%d", s.Device, s.Inode, s.Size, s.Modified, s.Changed, s.Links)
}

// List returns f in the order in which a child gets it.
func (f Files) List() []*os.File { return []*os.File{f.Agent, f.Unpacker} }

// Keep makes this process's next program inherit f, and returns the option that tells it.
func (f Files) Keep() ([]string, error) {
	for _, file := range f.List() {
		if _, err := unix.FcntlInt(file.Fd(), unix.F_SETFD, 0); err != nil {
			return nil, os.NewSyscallError("fcntl(F_SETFD)", err)
		}
	}
	return f.option(int(f.Agent.Fd()), int(f.Unpacker.Fd())), nil
}

// Inherited returns the files that value, of Option, names. No child inherits them further.
func Inherited(value string) (f Files, err error) {
	parts := strings.Split(value, ",")
	for i, to := range []struct {
		file  **os.File
		stamp *Stamp
	}{{&f.Agent, &f.AgentStamp}, {&f.Unpacker, &f.UnpackerStamp}} {
		var n [7]int64
		fields := strings.Split(parts[min(i, len(parts)-1)], ":")
		ok := len(parts) == 2 && len(fields) == len(n)
		for j := 0; ok && j < len(n); j++ {
			n[j], err = strconv.ParseInt(fields[j], 10, 64)
			ok = err == nil
		}
		fd := int(n[0])
		if !ok || fd < 3 {
			return Files{}, fmt.Errorf("option %s %q: must be two descriptors, each with the device, inode, size, times and links of its file", Option, value)
		}
		*to.stamp = Stamp{n[1], n[2], n[3], n[4], n[5], n[6]}
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
			return Files{}, fmt.Errorf("option %s %q: descriptor %d: %w", Option, value, fd, err)
		}
		*to.file = os.NewFile(uintptr(fd), "program")
	}
	return f, nil
}

// Close closes f.
func (f Files) Close() {
	for _, file := range f.List() {
		file.Close() // a nil file is fine
	}
}
