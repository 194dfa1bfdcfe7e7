package mounts

import (
	"fmt"
	"os"

	"github.com/boxd/boxd/internal/linux"
)

// Cover is a detached mount for a path of the box, a file or a directory as the path is.
type Cover struct {
	Tree   *os.File // its owner closes it
	Target string
}

// CoverAll attaches covers in a box in which no command runs yet that could move their targets. Unlike the mounts of
// [Attach] they may lie in /proc and /sys, and are never detached.
func CoverAll(ns NS, covers []Cover) error {
	return ns.enter(func() error {
		for _, c := range covers {
			point, err := ns.openTarget(c.Target)
			if err != nil {
				return err
			}
			err = linux.MoveMount(c.Tree, point, "", 0)
			point.Close()
			if err != nil {
				return fmt.Errorf("covering %q: %w", c.Target, err)
			}
		}
		return nil
	})
}
