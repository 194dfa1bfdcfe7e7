package testutil

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// strangers are the launchers on this machine that work for others: their caller lives and is not a
// descendant of this test. What belongs to them comes and goes, and is no leak. A launcher whose
// caller is gone may be a leak.
type strangers struct {
	launchers map[int]bool
	instances []string // state directories of one launcher each
	boxes     []string // names of the cgroups of their boxes
}

func findStrangers(all map[int]process) strangers {
	s := strangers{launchers: map[int]bool{}}
	for _, p := range all {
		caller, lives := all[p.ppid]
		if lives && p.ppid != 1 && p.hasRole("keeper") && !isDescendant(p, all) {
			s.launchers[p.pid] = true // so are its children
		}
		if lives && p.ppid != 1 && p.hasRole("launcher") && !caller.hasRole("launcher") && !isDescendant(p, all) {
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

// hasRole reports whether p is a boxd-init that was started in this role.
func (p process) hasRole(role string) bool {
	line, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.pid), "cmdline"))
	return strings.HasPrefix(string(line), "boxd-init\x00"+role+"\x00")
}

// instance returns the directory whose lock a launcher holds, or "".
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

// box returns the name of the box whose PID 1 is p, or "".
func (p process) box() string {
	cgroups, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(p.pid), "cgroup"))
	_, rest, _ := strings.Cut(string(cgroups), ":/boxd/")
	line, _, _ := strings.Cut(rest, "\n")
	name, _, _ := strings.Cut(line, "/")
	return name
}

// own reports whether a process is a launcher of a stranger, or a descendant of one.
func (s strangers) own(p process, all map[int]process) bool {
	return isOrBelow(p, all, func(p process) bool { return s.launchers[p.pid] })
}

// ownPath reports whether a cgroup, a state file or the target of a lease ("<instance>/<box>") belongs
// to a stranger: whether a part of it names a stranger's box or instance. Both names are random.
func (s strangers) ownPath(path string) bool {
	return slices.ContainsFunc(strings.Split(path, "/"), func(part string) bool {
		isInstance := func(dir string) bool { return dir != "" && part == filepath.Base(dir) }
		return part != "" && (slices.Contains(s.boxes, part) || slices.ContainsFunc(s.instances, isInstance))
	})
}
