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
	listDepth  = 6 // of directories beneath where it begins
	scanDepth  = 2
	maxEntries = 10_000 // in the directories that are looked into
	maxSkills  = 1000
)

// entryFiles are the names of a file that makes a directory a skill, best first.
var entryFiles = []string{"SKILL.md", "skill.md"}

// place is where a skill was found.
type place struct {
	dir   string // in the tree
	entry string // one of entryFiles
}

// discover looks for skills in start and below, breadth first, as deep as depth. It does
// not follow symlinks and does not look into skills. errTooLong comes with what was found
// until a bound was reached: what lies deep does not hide what lies shallow.
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
			next = append(next, directories(root, dir, names)...)
		}
		level = next
	}
	return found, bound
}

// directories returns those of names in dir that are directories, and no symlinks.
func directories(root *os.Root, dir string, names []string) []string {
	var dirs []string
	for _, name := range names {
		at := path.Join(dir, name)
		if IsPrivate(at) {
			continue
		}
		if st, err := root.Lstat(at); err == nil && st.IsDir() {
			dirs = append(dirs, at)
		}
	}
	return dirs
}

// findEntry returns the name of the file that makes dir a skill, "" if there is none.
func findEntry(root *os.Root, dir string) string {
	for _, name := range entryFiles {
		if st, err := root.Lstat(path.Join(dir, name)); err == nil && st.Mode().IsRegular() {
			return name
		}
	}
	return ""
}

// isRealDir reports whether name is a directory, none of whose components is a symlink.
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
