package mounts

import (
	"errors"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
)

// MountAt returns the id of the mount that target in the box shows, 0 if target is
// not the root of one.
func MountAt(ns NS, target string) (id MountID, err error) {
	if err := spec.CheckTarget(target); err != nil {
		return 0, err
	}
	err = ns.enter(func() error {
		f, err := ns.openTarget(target)
		if errors.Is(err, ErrNoTarget) {
			return nil
		}
		if err != nil {
			return err
		}
		defer f.Close()
		st, err := linux.Statx(f, unix.STATX_MNT_ID)
		if err != nil || st.Attributes&unix.STATX_ATTR_MOUNT_ROOT == 0 {
			return err
		}
		id, err = mountID(f)
		return err
	})
	return id, err
}
