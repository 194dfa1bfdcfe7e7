package mounts

import (
	"fmt"
	"strings"

	"github.com/boxd/boxd/internal/linux"
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
	if !isBelow(p, dir) {
		return "", false
	}
	return strings.TrimPrefix(p[len(dir):], "/"), true
}

// isBelow says whether the cleaned path p is dir or lies below it.
func isBelow(p, dir string) bool {
	rest, ok := strings.CutPrefix(p, dir)
	return ok && (rest == "" || rest[0] == '/' || dir == "/")
}
