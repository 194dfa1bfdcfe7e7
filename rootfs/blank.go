package rootfs

import (
	"fmt"

	"github.com/boxd/boxd/internal/linux"
)

// Rename gives the box another name in /etc/hostname and /etc/hosts. No command may have run in it, and
// its root must be read-only and of the image "host": the files of any other root lie below an overlay,
// which must not change while it is mounted.
func (r *Root) Rename(hostname string) error {
	o := r.built.o
	o.Hostname = hostname
	if err := o.check(); err != nil {
		return fmt.Errorf("renaming a box: %w", err)
	}
	for _, name := range []string{"hostname", "hosts"} {
		if err := linux.RewriteAt(r.skeleton, perBoxDir+"/"+name, perBoxFile(name, o)); err != nil {
			return fmt.Errorf("renaming a box: %w", err)
		}
	}
	r.built.o = o
	return nil
}

// Resize gives /tmp, the home directory and /dev/shm another size in bytes, each, with the number of
// inodes that belongs to it. Nothing may be in them yet.
func (r *Root) Resize(size int64) error {
	o := r.built.o
	o.TmpSize = size
	if err := o.check(); err != nil {
		return fmt.Errorf("resizing the file systems of a box: %w", err)
	}
	for i := range r.volumes {
		v := &r.volumes[i]
		if v.Path == "/" { // the upper directory of a writable root
			continue
		}
		options := sized(size, 0, "", 0, 0)[:2] // owner and mode stay
		if err := linux.Reconfigure(v.File, options...); err != nil {
			return fmt.Errorf("resizing %q of a box: %w", v.Path, err)
		}
		v.Size = size
	}
	r.built.o = o
	return nil
}
