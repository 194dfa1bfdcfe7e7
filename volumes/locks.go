package volumes

import (
	"errors"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// locks are mutexes by name, which exist while somebody has or wants them.
type locks struct {
	mu    sync.Mutex
	names map[string]*namedLock
}

type namedLock struct {
	mu    sync.Mutex
	users int // under locks.mu
}

// lock locks name and returns what unlocks it.
func (l *locks) lock(name string) (unlock func()) {
	l.mu.Lock()
	n := l.names[name]
	if n == nil {
		if l.names == nil {
			l.names = map[string]*namedLock{}
		}
		n = &namedLock{}
		l.names[name] = n
	}
	n.users++
	l.mu.Unlock()
	n.mu.Lock()
	return func() {
		n.mu.Unlock()
		l.mu.Lock()
		defer l.mu.Unlock()
		if n.users--; n.users == 0 {
			delete(l.names, name)
		}
	}
}

const markerName = ".boxd-volumes"

// lockPatience is for a process that was killed a moment ago and is not gone yet. Tests shorten it.
var lockPatience = 5 * time.Second

// takeOver locks the data directory for this process. A directory that already has
// other things in it is refused: one wrong argument, and Open would sweep it.
func takeOver(dir *os.File) (marker *os.File, err error) {
	marker, err = openFile(dir, markerName, unix.O_RDWR)
	if errors.Is(err, unix.ENOENT) {
		if err = checkEmpty(dir); err != nil {
			return nil, err
		}
		marker, err = openFile(dir, markerName, unix.O_RDWR|unix.O_CREAT)
	}
	if err != nil {
		return nil, err
	}
	for until := time.Now().Add(lockPatience); ; time.Sleep(5 * time.Millisecond) {
		err = linux.Retry(func() error { return unix.Flock(int(marker.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
		if err == nil {
			return marker, nil
		}
		if err != unix.EWOULDBLOCK || time.Now().After(until) {
			marker.Close()
			return nil, refuse("data directory", dir.Name(), "another process uses it: %v", err).because(err)
		}
	}
}

func checkEmpty(dir *os.File) error {
	names, err := entries(dir)
	if err != nil {
		return err
	}
	for _, name := range names {
		// ext4 makes one in the root of every file system.
		if name != "lost+found" {
			return refuse("data directory", dir.Name(), "has %.60q in it and no %s: name a directory that is empty", name, markerName)
		}
	}
	return nil
}

// entries are the names in dir, which may change meanwhile.
func entries(dir *os.File) ([]string, error) {
	f, err := linux.Reopen(dir, unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err == io.EOF {
		err = nil
	}
	return names, err
}

// openFile opens a regular file of ours in dir that nobody else can reach: no symlink,
// no second name.
func openFile(dir *os.File, name string, flags int) (*os.File, error) {
	how := unix.OpenHow{
		Flags:   uint64(flags | unix.O_NOFOLLOW | unix.O_NONBLOCK),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	}
	if flags&unix.O_CREAT != 0 {
		how.Mode = 0o600
	}
	f, err := linux.Openat2(dir, name, how)
	if err != nil {
		return nil, err
	}
	st, err := linux.Fstat(f)
	if err == nil && (st.Mode&unix.S_IFMT != unix.S_IFREG || st.Nlink > 1 || int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0) {
		err = refuse("file", dir.Name()+"/"+name, "must be a regular file of user %d with mode 0600 and one name, but has mode %#o, owner %d and %d names",
			os.Geteuid(), st.Mode, st.Uid, st.Nlink)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openDir opens a directory in dir that is no symlink and no mount point.
func openDir(dir *os.File, name string, flags int) (*os.File, error) {
	return linux.Openat2(dir, name, unix.OpenHow{
		Flags:   uint64(flags | unix.O_DIRECTORY | unix.O_NOFOLLOW),
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_XDEV,
	})
}

// unlink removes the name of what is no directory (EISDIR); one that is not there is no error.
func unlink(dir *os.File, name string) error {
	err := linux.Retry(func() error { return unix.Unlinkat(int(dir.Fd()), name, 0) })
	if err == nil || err == unix.ENOENT {
		return nil
	}
	return &os.PathError{Op: "unlinkat", Path: dir.Name() + "/" + name, Err: err}
}

// rename gives oldName in dir a new name, which must be free unless replace is set.
func rename(dir *os.File, oldName string, newDir *os.File, newName string, replace bool) error {
	flags := uint(unix.RENAME_NOREPLACE)
	if replace {
		flags = 0
	}
	err := linux.Retry(func() error {
		return unix.Renameat2(int(dir.Fd()), oldName, int(newDir.Fd()), newName, flags)
	})
	if err != nil {
		return &os.LinkError{Op: "renameat2", Old: dir.Name() + "/" + oldName, New: newDir.Name() + "/" + newName, Err: err}
	}
	return nil
}

// id as part of a file name.
func idText(id uint32) string { return strconv.FormatUint(uint64(id), 10) }
