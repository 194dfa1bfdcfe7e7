package cgroups

import (
	"fmt"
	"os"
)

// InitDir opens the cgroup2 directory in which PID 1 of the box is to be born
// with clone3(CLONE_INTO_CGROUP), as [Slot.Dir] is for commands. The caller owns
// it.
func (g *Group) InitDir() (*os.File, error) {
	dir, err := openDir(g.sealed, "init")
	if err != nil {
		return nil, fmt.Errorf("opening the cgroup of PID 1 of box %q: %w", g.ID, err)
	}
	return dir, nil
}
