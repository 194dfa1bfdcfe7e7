package mounts

import (
	"fmt"
	"os"

	"github.com/boxd/boxd/internal/linux"
)

// Cover is a detached mount, and the path in the box that it will cover. Both are files or
// both are directories.
type Cover struct {
	Tree   *os.File // its owner closes it
	Target string
}

// CoverAll attaches covers in a box in which no command runs yet: a command could move their
// targets. Unlike mounts of [Attach], covers may lie in /proc and /sys, and are never detached.
func CoverAll(ns NS, covers []Cover) error {
	return ns.enter(func() error {
		for _, c := range covers {
			point, err := ns.openTarget(c.Target)
			if err != nil {
				return err
			}
			err = linux.MoveMount(c.Tree, point, "")
			point.Close()
			if err != nil {
				return fmt.Errorf("covering %q: %w", c.Target, err)
			}
		}
		return nil
	})
}
