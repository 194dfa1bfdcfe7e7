package native

import (
	"math"
	"os"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/native/rpc"
	"golang.org/x/sys/unix"
)

// volume is a sized file system, or a directory of limited size, of a box, watched from
// outside.
type volume struct {
	rpc.Volume
	dir *os.File
}

// describe names the volume and its size.
func (v *volume) describe() string {
	if v.Size < 0 {
		return v.Path // only the number of its files is limited
	}
	return v.Path + " " + engine.FormatSize(v.Size)
}

// level is how much of a volume is left for commands.
type level struct {
	bytes, files int64
	known        bool
}

// level looks how much is left.
func (v *volume) level() level {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(v.dir.Fd()), &st); err != nil {
		return level{}
	}
	l := level{bytes: math.MaxInt64, files: math.MaxInt64, known: true}
	if block := max(st.Bsize, 1); st.Blocks > 0 {
		l.bytes = int64(min(st.Bavail, uint64(math.MaxInt64/block))) * block
	}
	if st.Files > 0 {
		l.files = int64(min(st.Ffree, math.MaxInt64))
	}
	return l
}

// levels looks at all volumes.
func levels(volumes []volume) []level {
	list := make([]level, len(volumes))
	for i := range volumes {
		list[i] = volumes[i].level()
	}
	return list
}

// filled says whether a command that began at level before and ended at now has made the
// volume full. One that could not be read counts as not full: nothing is made up.
//
// A file system on a disk refuses a write as a whole, and so is full with as much left as
// somebody wanted to write at once. Who wrote something into one that was almost full
// before has made it full as well.
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
