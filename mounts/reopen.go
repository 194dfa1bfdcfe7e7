package mounts

import (
	"os"
	"path"

	"github.com/boxd/boxd/engine/spec"
)

// OpenAttached returns an O_PATH descriptor of what the mount id, which [Attach] made
// at target, shows there. If another mount is there, or none, the error is
// ErrNotAttached. The caller closes it.
func OpenAttached(ns NS, target string, id MountID) (f *os.File, err error) {
	if err := spec.CheckTarget(target); err != nil {
		return nil, err
	}
	err = ns.enter(func() error {
		dir, err := ns.openTarget(path.Dir(target))
		if err != nil {
			return notAttached(target, err)
		}
		defer dir.Close()
		f, err = openAttached(dir, target, id)
		return err
	})
	return f, err
}
