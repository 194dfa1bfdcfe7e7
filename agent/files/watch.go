package files

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/agent/files/proto"
	"github.com/boxd/boxd/internal/glob"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// maxWatched bounds the directories of one watch.
const maxWatched = 4096

// gather is how long changes are collected after the first: a program that writes a file
// changes it many times.
const gather = 20 * time.Millisecond

// watcher reports what changes in a directory, and with recursive in those below it. Paths are
// relative to the directory, whose own is "". No directory is held open: it would not be deleted.
type watcher struct {
	top       string
	inotify   int
	recursive bool
	set       glob.Set
	paths     map[int32]string // of the watched directories, by watch descriptor
	out       *json.Encoder
	batch     []proto.Change
}

// watch reports changes until it is killed, or until the directory is removed.
func (o *operation) watch() (proto.Reply, error) {
	var q proto.Watch
	if err := json.Unmarshal([]byte(o.args[0]), &q); err != nil {
		return proto.Reply{}, fmt.Errorf("argument %q: %w", o.args[0], unix.EINVAL)
	}
	set, err := glob.Parse(q.Globs)
	if err != nil {
		return proto.Reply{}, fmt.Errorf("%w: %w", err, unix.EINVAL)
	}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC)
	if err != nil {
		return proto.Reply{}, err
	}
	defer unix.Close(fd)
	w := &watcher{top: o.path, inotify: fd, recursive: q.Recursive, set: set, paths: map[int32]string{}, out: json.NewEncoder(o.out)}
	if err := w.add("", false); err != nil {
		return proto.Reply{}, err
	}
	if err := w.out.Encode(proto.Change{Type: proto.Ready}); err != nil {
		return proto.Reply{}, err
	}
	buf := make([]byte, 64<<10)
	for {
		n, err := unix.Read(fd, buf)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return proto.Reply{}, err
		}
		ended, err := w.events(buf[:n])
		if err != nil {
			return proto.Reply{}, err
		}
		for _, c := range w.batch {
			if err := w.out.Encode(c); err != nil {
				return proto.Reply{}, err
			}
		}
		if w.batch = w.batch[:0]; ended {
			return proto.Reply{}, nil
		}
		time.Sleep(gather)
	}
}

// add watches the directory at p, and those below it if the watcher is recursive. With found it
// reports its entries, which may have been made before it was watched.
func (w *watcher) add(p string, found bool) error {
	flags := unix.O_RDONLY | unix.O_DIRECTORY
	if p != "" {
		flags |= unix.O_NOFOLLOW
	}
	dir, err := open(w.top+"/"+p, flags)
	if err != nil {
		return w.unwatchable(p, err)
	}
	defer dir.Close()
	if len(w.paths) == maxWatched {
		return &stepError{fmt.Sprintf("watching more than %d directories:", maxWatched), shorten(p), unix.ENOSPC}
	}
	const mask = unix.IN_CREATE | unix.IN_MODIFY | unix.IN_CLOSE_WRITE | unix.IN_ATTRIB | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO |
		unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR
	wd, err := unix.InotifyAddWatch(w.inotify, linux.FdPath(dir), mask)
	if err != nil {
		return w.unwatchable(p, err)
	}
	w.paths[int32(wd)] = p
	if !w.recursive {
		return nil
	}
	entries, err := dir.ReadDir(-1)
	dir.Close() // before those below it are opened
	if err != nil {
		return w.unwatchable(p, err)
	}
	for _, e := range entries {
		below := path.Join(p, e.Name())
		if found {
			w.note(proto.Created, below, e.IsDir())
		}
		if e.IsDir() && len(below) <= maxPath {
			if err := w.add(below, found); err != nil {
				return err
			}
		}
	}
	return nil
}

// unwatchable returns the error of a directory that cannot be watched, unless it is one below
// the first that is gone or that the user may not read.
func (w *watcher) unwatchable(p string, err error) error {
	if p != "" && (errors.Is(err, unix.EACCES) || ignoreGone(err) == nil) {
		return nil
	}
	if p == "" {
		return err
	}
	return &stepError{"watching", shorten(p), err}
}

// forget stops watching the directory at p and those below it.
func (w *watcher) forget(p string) {
	for wd, watched := range w.paths {
		if watched == p || strings.HasPrefix(watched, p+"/") {
			_, _ = unix.InotifyRmWatch(w.inotify, uint32(wd))
			delete(w.paths, wd)
		}
	}
}

// events takes the events of inotify(7) in b. ended: the directory itself is gone.
func (w *watcher) events(b []byte) (ended bool, err error) {
	for len(b) >= unix.SizeofInotifyEvent {
		wd, mask := int32(binary.NativeEndian.Uint32(b)), binary.NativeEndian.Uint32(b[4:])
		size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		name := strings.TrimRight(string(b[unix.SizeofInotifyEvent:size]), "\x00")
		b = b[size:]
		dir, known := w.paths[wd]
		switch {
		case mask&unix.IN_Q_OVERFLOW != 0:
			w.batch = append(w.batch, proto.Change{Type: proto.Missed})
			continue
		case !known:
			continue // no longer watched
		case dir == "" && mask&(unix.IN_DELETE_SELF|unix.IN_MOVE_SELF|unix.IN_UNMOUNT|unix.IN_IGNORED) != 0:
			w.batch = append(w.batch, proto.Change{Type: proto.Gone})
			return true, nil
		case mask&unix.IN_IGNORED != 0:
			delete(w.paths, wd)
			continue
		case name == "":
			continue // about a directory, and reported by the one above
		}
		p, isDir := path.Join(dir, name), mask&unix.IN_ISDIR != 0
		switch {
		case mask&(unix.IN_CREATE|unix.IN_MOVED_TO) != 0:
			w.note(proto.Created, p, isDir)
			if isDir && w.recursive {
				if err := w.add(p, true); err != nil {
					return false, err
				}
			}
		case mask&(unix.IN_DELETE|unix.IN_MOVED_FROM) != 0:
			w.note(proto.Removed, p, isDir)
			if isDir {
				w.forget(p)
			}
		case mask&(unix.IN_MODIFY|unix.IN_CLOSE_WRITE) != 0:
			w.note(proto.Modified, p, isDir)
		case mask&unix.IN_ATTRIB != 0:
			w.note(proto.Attributes, p, isDir)
		}
	}
	return false, nil
}

// note adds a change to the batch, unless the last change of the path in it was the same.
func (w *watcher) note(kind, p string, isDir bool) {
	if !w.set.Match(p) {
		return
	}
	c := proto.Change{Type: kind, Path: []byte(p), Dir: isDir}
	for _, last := range slices.Backward(w.batch[max(0, len(w.batch)-64):]) {
		if string(last.Path) == p {
			if last.Type == kind {
				return
			}
			break
		}
	}
	w.batch = append(w.batch, c)
}
