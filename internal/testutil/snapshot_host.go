package testutil

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
)

// mountLine is what proc_pid_mountinfo(5) says about one mount.
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

// parseMount reads one line: a " - " ends the optional fields.
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

// cgroupDepth bounds how deep below the root of a hierarchy a directory of boxd
// is looked for. Below such a directory everything is listed.
const cgroupDepth = 4

// listCgroups returns the directories named boxd* of every hierarchy and all
// below them. The subtree root "/boxd" itself stays for the next box: it is no
// leak.
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

// dropStrangers takes away what living boxd's of others use. They are looked for
// after the list was made: so what is new in it is known to be theirs.
func dropStrangers(list map[string]string) {
	if len(list) == 0 {
		return
	}
	others := findStrangers(allProcesses())
	maps.DeleteFunc(list, func(path, _ string) bool {
		target, _ := os.Readlink(path) // of a lease: the box it is for
		return others.ownPath(path) || others.ownPath(target)
	})
}

func findBoxd(root string, list map[string]string) {
	filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return nil // removed meanwhile, or a control file
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

// listState returns what is in the state directories. The lock file, the
// directory of id leases and the copies of /etc stay for the next start: they are no leak.
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

// listLoops returns the loop devices whose backing file is, or was, one of a test's or
// of boxd's state.
func listLoops(dirs []string) map[string]string {
	list := map[string]string{}
	files, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // freed meanwhile
		}
		backing := strings.TrimSpace(string(text))
		if isBelowAny(backing, dirs) {
			what := filepath.Base(filepath.Dir(filepath.Dir(file))) + " of " + backing
			list[what] = what
		}
	}
	return list
}

func isBelowAny(path string, dirs []string) bool {
	for _, dir := range dirs {
		if strings.HasPrefix(path, filepath.Clean(dir)+"/") {
			return true
		}
	}
	return false
}
