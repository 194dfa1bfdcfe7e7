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

// full says whether no block or no inode is left for commands. A volume that
// cannot be read counts as not full: nothing is made up.
func (v *volume) full() bool {
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(v.dir.Fd()), &st); err != nil {
		return false
	}
	block := max(st.Bsize, 1)
	left := int64(min(st.Bavail, uint64(math.MaxInt64/block))) * block
	return st.Blocks > 0 && left <= v.Slack || st.Files > 0 && st.Ffree == 0
}

// fullVolumes is a set of volumes as bits, by index.
func fullVolumes(volumes []volume) (full uint64) {
	for i := range volumes {
		if i < 64 && volumes[i].full() {
			full |= 1 << i
		}
	}
	return full
}
