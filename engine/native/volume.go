package native

import (
	"math"
	"os"
	"slices"
	"sync"

	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"golang.org/x/sys/unix"
)

// volume is a file system or directory of limited size of a box, which this process watches.
type volume struct {
	rpc.Volume
	dir *os.File
}

// describe names the volume and its size.
func (v *volume) describe() string {
	if v.Size < 0 {
		return v.Path // only the number of its files is limited
	}
	return v.Path + " " + spec.FormatSize(v.Size)
}

// volumeSet holds the watched volumes of a box.
type volumeSet struct {
	mu     sync.Mutex
	list   []*volume
	closed bool
}

// add takes ownership of files, one for each volume.
func (s *volumeSet) add(volumes []rpc.Volume, files []*os.File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed { // the box was removed meanwhile
		linux.CloseAll(files[:len(volumes)])
		return
	}
	for i, v := range volumes {
		s.list = append(s.list, &volume{Volume: v, dir: files[i]})
	}
}

// drop closes the volumes at targets: an open descriptor would keep them mounted.
func (s *volumeSet) drop(targets []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = slices.DeleteFunc(s.list, func(v *volume) bool {
		gone := slices.Contains(targets, v.Path)
		if gone {
			v.dir.Close()
		}
		return gone
	})
}

func (s *volumeSet) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, v := range s.list {
		v.dir.Close()
	}
	s.list, s.closed = nil, true
}

// level is how much of a volume is free for commands.
type level struct {
	of           *volume
	bytes, files int64
	known        bool
}

// level reads how much is free. The level of a dropped volume is unknown.
func (v *volume) level() level {
	var st unix.Statfs_t
	raw, err := v.dir.SyscallConn() // keeps a concurrent drop from freeing the number
	if err != nil {
		return level{of: v}
	}
	var serr error
	if err := raw.Control(func(fd uintptr) { serr = unix.Fstatfs(int(fd), &st) }); err != nil || serr != nil {
		return level{of: v}
	}
	l := level{of: v, bytes: math.MaxInt64, files: math.MaxInt64, known: true}
	if block := max(st.Bsize, 1); st.Blocks > 0 {
		l.bytes = int64(min(st.Bavail, uint64(math.MaxInt64/block))) * block
	}
	if st.Files > 0 {
		l.files = int64(min(st.Ffree, math.MaxInt64))
	}
	return l
}

// levels reads the levels of all volumes of a box.
func levels(s *volumeSet) []level {
	s.mu.Lock()
	list := slices.Clone(s.list)
	s.mu.Unlock()
	all := make([]level, len(list))
	for i, v := range list {
		all[i] = v.level()
	}
	return all
}

// filled reports whether a command that began at level before and ended at now has filled the
// volume. A level that could not be read counts as not full.
//
// A file system on disk refuses a write as a whole, so it is full with up to Slack bytes free.
// A command that wrote into a volume that was almost full before has filled it as well.
func (v *volume) filled(before, now level) bool {
	switch {
	case !now.known:
		return false
	case now.files == 0 && !(before.known && before.files == 0):
		return true
	case now.bytes > v.Slack:
		return false
	case !before.known || before.bytes > v.Slack:
		return true
	}
	return v.Slack > 0 && (now.bytes < before.bytes || now.files < before.files)
}
