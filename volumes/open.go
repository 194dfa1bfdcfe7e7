package volumes

import (
	"errors"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
)

// openOwn opens a directory of the calling user that others cannot access, and creates it if
// it is missing. The directory itself must not be a symlink. Its path may pass symlinks, since
// administrators use them.
func openOwn(field, path string) (*os.File, error) {
	err := os.Mkdir(path, 0o700)
	if err != nil && !errors.Is(err, os.ErrExist) {
		return nil, refuse(field, path, "cannot be made: %v", err).because(err)
	}
	dir, err := linux.Openat2(nil, path, unix.OpenHow{
		Flags:   unix.O_RDONLY | unix.O_DIRECTORY | unix.O_NOFOLLOW,
		Resolve: unix.RESOLVE_NO_MAGICLINKS,
	})
	if err != nil {
		return nil, refuse(field, path, "must be a directory and no symlink: %v", err).because(err)
	}
	st, err := linux.Fstat(dir)
	if err == nil && (int(st.Uid) != os.Geteuid() || st.Mode&0o077 != 0) {
		err = refuse(field, path, "belongs to user %d with mode %#o, must belong to user %d with mode 0700: run chown and chmod, or name another one",
			st.Uid, st.Mode&0o7777, os.Geteuid())
	}
	if err != nil {
		dir.Close()
		return nil, err
	}
	return dir, nil
}

const markerName = ".boxd-volumes"

// lockPatience is how long takeOver waits for the lock, because a process that was just killed
// may not be gone yet. Tests shorten it.
var lockPatience = 5 * time.Second

// takeOver locks the data directory for this process. It refuses a directory with foreign
// content: after a mistake in an argument, Open would otherwise sweep it.
func takeOver(dir *os.File) (marker *os.File, err error) {
	marker, err = openFile(dir, markerName, unix.O_RDWR)
	if errors.Is(err, unix.ENOENT) {
		names, listing := linux.ReadNames(dir)
		if listing != nil {
			return nil, listing
		}
		for _, name := range names {
			// ext4 creates lost+found in the root of every file system, package layers the other.
			if name != "lost+found" && name != "images" {
				return nil, refuse("data directory", dir.Name(), "has %.60q in it and no %s: use a directory that is empty", name, markerName)
			}
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

// heal cleans up leftovers for Open, before anybody else can use s.
func (s *Store) heal() error {
	if err := errors.Join(s.unmountAll(), s.detachLeftovers()); err != nil {
		return err
	}
	all, err := linux.ReadNames(s.dir)
	if err != nil {
		return err
	}
	for _, name := range all {
		if strings.HasPrefix(name, newPrefix) {
			if err := s.throwAway(name); err != nil {
				return err
			}
		}
		if id, ok := treeID(name); ok {
			s.ids.take(id)
		}
	}
	names, err := s.names()
	if err != nil {
		return err
	}
	// All IDs must be known before the first one is released or adopted.
	for _, name := range names {
		if text, err := s.readFile(name + recordSuffix); err == nil {
			if r, err := decodeRecord(text); err == nil && r.Project != 0 {
				s.ids.take(r.Project)
			}
		}
	}
	for _, name := range names {
		// An image can wait until it is needed: checking a large one that has lost its record
		// in a power failure may take minutes.
		if image, err := s.exists(name + imageSuffix); image && err == nil {
			continue
		}
		r, err := s.load(name)
		// Ignore errors: one bad volume must not disable all others. A use of the volume
		// will report them.
		if err == nil && r.Project != 0 && s.noQuota == nil {
			_ = linux.SetProjectQuota(s.dir, r.Project, uint64(r.Bytes), uint64(r.Inodes))
		}
	}
	s.sweeper.Go(s.emptyTrash)
	return nil
}
