package rootfs

import "os"

// Volume is a file system of limited size that a box can write to.
type Volume struct {
	Path string   // in the box
	Size int64    // bytes
	File *os.File // O_PATH descriptor, good for fstatfs; belongs to the Root
}

// Volumes are what the box can write to, mounts by others excepted.
func (r *Root) Volumes() []Volume { return r.volumes }
