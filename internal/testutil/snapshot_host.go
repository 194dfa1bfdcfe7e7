package testutil

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// mountLine is a line of proc_pid_mountinfo(5).
type mountLine struct{ id, root, target, fstype, source string }

// readMounts lists the mounts of this process's mount namespace.
func readMounts() []mountLine {
	data, _ := os.ReadFile("/proc/self/mountinfo")
	var mounts []mountLine
	for line := range strings.Lines(string(data)) {
		if m, ok := parseMount(line); ok {
			mounts = append(mounts, m)
		}
	}
	return mounts
}

// parseMount parses one line. A " - " ends the optional fields.
func parseMount(line string) (mountLine, bool) {
	left, right, ok := strings.Cut(line, " - ")
	l, r := strings.Fields(left), strings.Fields(right)
	if !ok || len(l) < 6 || len(r) < 2 {
		return mountLine{}, false
	}
	return mountLine{id: l[0], root: l[3], target: l[4], fstype: r[0], source: r[1]}, true
}

func listMounts() map[string]string {
	list := map[string]string{}
	for _, m := range readMounts() {
		what := m.target + " (" + m.fstype + " of " + m.source + m.root + ")"
		list[m.id+" "+what] = what
	}
	return list
}

// cgroupDepth bounds how deep below the root of a hierarchy listCgroups looks for directories of boxd.
// Below such a directory it lists everything.
const cgroupDepth = 4

// listCgroups returns the directories named boxd* of every hierarchy, and everything below them. The
// directory "/boxd" itself stays for the next box, so it is no leak.
func listCgroups() map[string]string {
	list := map[string]string{}
	for _, m := range readMounts() {
		if m.fstype == "cgroup" || m.fstype == "cgroup2" {
			findBoxd(m.target, list)
			delete(list, filepath.Join(m.target, "boxd"))
		}
	}
	dropStrangers(list)
	return list
}

// dropStrangers removes from list what belongs to boxd processes of others. It looks for those
// processes after the list was made, so it finds the owner of everything in it.
func dropStrangers(list map[string]string) {
	if len(list) == 0 {
		return
	}
	others := findStrangers(allProcesses())
	maps.DeleteFunc(list, func(path, _ string) bool {
		target, _ := os.Readlink(path) // a lease points to its box
		return others.ownPath(path) || others.ownPath(target)
	})
}

func findBoxd(root string, list map[string]string) {
	filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // just removed, or a control file
		}
		rel, _ := filepath.Rel(root, path)
		names := strings.Split(rel, "/")
		for _, name := range names {
			if strings.HasPrefix(name, "boxd") {
				list[path] = path
				return nil
			}
		}
		if len(names) >= cgroupDepth {
			return fs.SkipDir
		}
		return nil
	})
}

// listState returns the content of the state directories. The lock file, the directory of ID leases
// and the copies of /etc stay for the next start, so they are no leak.
func listState(dirs []string) map[string]string {
	list := map[string]string{}
	for _, dir := range dirs {
		etc := filepath.Join(dir, "etc")
		filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
			if path == etc {
				return fs.SkipDir
			}
			if err == nil {
				list[path] = path
			}
			return nil
		})
		for _, lasting := range []string{"", "lock", "ids"} {
			delete(list, filepath.Join(dir, lasting))
		}
	}
	dropStrangers(list)
	return list
}

// listLoops returns the loop devices whose backing file is, or was, in one of dirs.
func listLoops(dirs []string) map[string]string {
	list := map[string]string{}
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // just freed
		}
		backing := strings.TrimSpace(string(text))
		if slices.ContainsFunc(dirs, func(dir string) bool { return strings.HasPrefix(backing, filepath.Clean(dir)+"/") }) {
			what := filepath.Base(filepath.Dir(filepath.Dir(file))) + " of " + backing
			list[what] = what
		}
	}
	return list
}
