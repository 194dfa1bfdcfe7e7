package mounts

import (
	"fmt"
	"strings"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/pathin"
)

// mountTable holds the mounts of this mount namespace by their ids.
type mountTable map[uint64]linux.MountInfo

func readMountTable() (mountTable, error) {
	all, err := linux.ReadMountInfo()
	if err != nil {
		return nil, fmt.Errorf("listing mounts: %w", err)
	}
	table := make(mountTable, len(all))
	for _, m := range all {
		table[m.ID] = m
	}
	return table, nil
}

// cutDir returns the part of p below dir; both are absolute and cleaned.
func cutDir(p, dir string) (rest string, ok bool) {
	if !pathin.In(p, dir) {
		return "", false
	}
	return strings.TrimPrefix(p[len(dir):], "/"), true
}
