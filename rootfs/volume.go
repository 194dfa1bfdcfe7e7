package rootfs

import (
	"os"

	"github.com/boxd/boxd/internal/linux"
)

// Volume is a file system of limited size that a box can write to.
type Volume struct {
	Path string   // in the box
	Size int64    // bytes
	Dir  *os.File // O_PATH descriptor, good for fstatfs; belongs to the Root
}

// Full says that no byte, or no file, more fits into v.
func (v Volume) Full() (bool, error) {
	st, err := linux.Fstatfs(v.Dir)
	return err == nil && (st.Bavail == 0 || st.Ffree == 0), err
}

// Volumes are what the box can write to, mounts by others excepted.
func (r *Root) Volumes() []Volume { return r.volumes }

// Full returns the path and the size in bytes of a volume that is full now, if
// one is. What was full and had files deleted since is not found.
func (r *Root) Full() (path string, size int64, full bool) {
	for _, v := range r.volumes {
		if full, _ := v.Full(); full {
			return v.Path, v.Size, true
		}
	}
	return "", 0, false
}
