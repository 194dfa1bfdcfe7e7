package skills

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path"
)

// Bounds of looking for skills.
const (
	listDepth  = 6 // directories below the start
	scanDepth  = 2
	maxEntries = 10_000 // in all directories that are searched
	maxSkills  = 1000
)

// entryFiles are the names of files that make a directory a skill, in order of preference.
var entryFiles = []string{"SKILL.md", "skill.md"}

// place is the location of a skill.
type place struct {
	dir   string // in the tree
	entry string // one of entryFiles
}

// discover looks for skills in start and below, breadth first, down to depth. It follows no
// symlinks and does not search skills for other skills. With errTooLong it returns what it found
// before it reached a bound, so deep directories cannot hide shallow ones.
func discover(ctx context.Context, root *os.Root, start string, depth int) ([]place, error) {
	var found []place
	var bound error
	left := maxEntries
	level := []string{start}
	for d := 0; len(level) > 0; d++ {
		var next []string
		for _, dir := range level {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if entry := findEntry(root, dir); entry != "" {
				if len(found) == maxSkills {
					return found, errTooLong
				}
				found = append(found, place{dir, entry})
				continue
			}
			if d == depth {
				continue
			}
			names, err := readNames(root, dir, left)
			left -= len(names)
			if errors.Is(err, errTooLong) {
				bound = err
			}
			for _, name := range names {
				at := path.Join(dir, name)
				if IsPrivate(at) {
					continue
				}
				if st, err := root.Lstat(at); err == nil && st.IsDir() {
					next = append(next, at)
				}
			}
		}
		level = next
	}
	return found, bound
}

// findEntry returns the name of the file that makes dir a skill, "" if dir is not a skill.
func findEntry(root *os.Root, dir string) string {
	for _, name := range entryFiles {
		if st, err := root.Lstat(path.Join(dir, name)); err == nil && st.Mode().IsRegular() {
			return name
		}
	}
	return ""
}

// isRealDir reports whether name is a directory whose path contains no symlink.
func isRealDir(root *os.Root, name string) bool {
	for i := range len(name) + 1 {
		if i < len(name) && name[i] != '/' {
			continue
		}
		if st, err := root.Lstat(name[:i]); err != nil || st.Mode().Type() != fs.ModeDir {
			return false
		}
	}
	return true
}
