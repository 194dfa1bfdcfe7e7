package testutil

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// strangers are the launchers on this machine that work for somebody else: their
// caller lives and was not started by this test. What is theirs comes and goes
// while we look, and is no leak of ours. A launcher whose caller has gone may be a
// leak: it is nobody's descendant any more.
type strangers struct {
	launchers map[int]bool
	instances []string // state directories of one launcher each
	boxes     []string // names of the cgroups of their boxes
}

func findStrangers(all map[int]process) strangers {
	s := strangers{launchers: map[int]bool{}}
	for _, p := range all {
		caller, lives := all[p.ppid]
		if lives && p.ppid != 1 && p.isKeeper() && !isDescendant(p, all) {
			s.launchers[p.pid] = true // so is what it runs
		}
		if lives && p.ppid != 1 && p.isLauncher() && !caller.isLauncher() && !isDescendant(p, all) {
			s.launchers[p.pid] = true
			s.instances = append(s.instances, p.instance())
		}
	}
	for _, p := range all {
		if s.launchers[p.ppid] {
			s.boxes = append(s.boxes, p.box())
		}
	}
	return s
}

// isLauncher goes by what the caller named it.
func (p process) isLauncher() bool { return p.hasRole("launcher") }

// isKeeper likewise.
func (p process) isKeeper() bool { return p.hasRole("keeper") }

func (p process) hasRole(role string) bool {
	line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.pid), "cmdline"))
	return strings.HasPrefix(string(line), "boxd-init\x00"+role+"\x00")
}

// instance is the directory whose lock a launcher holds, "" if it has none yet.
func (p process) instance() string {
	fds := filepath.Join("/proc", strconv.Itoa(p.pid), "fd")
	entries, _ := os.ReadDir(fds)
	for _, e := range entries {
		if path, _ := os.Readlink(filepath.Join(fds, e.Name())); filepath.Base(path) == "lock" {
			return filepath.Dir(path)
		}
	}
	return ""
}

// box is the name of the box that PID 1 of one is in, "" if p is none.
func (p process) box() string {
	cgroups, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.pid), "cgroup"))
	_, rest, _ := strings.Cut(string(cgroups), ":/boxd/")
	line, _, _ := strings.Cut(rest, "\n")
	name, _, _ := strings.Cut(line, "/")
	return name
}

// own says whether a process is a launcher of a stranger, or below one.
func (s strangers) own(p process, all map[int]process) bool {
	return isOrBelow(p, all, func(p process) bool { return s.launchers[p.pid] })
}

// ownPath says whether a cgroup, a file of state or the target of a lease
// ("<instance>/<box>") belongs to a stranger: by a part of it that names a
// stranger's box or instance. Both names are random.
func (s strangers) ownPath(path string) bool {
	return slices.ContainsFunc(strings.Split(path, "/"), func(part string) bool {
		isInstance := func(dir string) bool { return dir != "" && part == filepath.Base(dir) }
		return part != "" && (slices.Contains(s.boxes, part) || slices.ContainsFunc(s.instances, isInstance))
	})
}
