package testutil

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
)

// Boxes have 4,095 ranges of 65,536 host IDs, beginning with 0x70000000.
const (
	firstBoxID = 0x70000000
	lastBoxID  = firstBoxID + 4095*65536 - 1
)

// process is a line of ps(1).
type process struct {
	pid, ppid int
	start     string // in clock ticks since boot; with pid it identifies the process
	comm      string
	state     string
}

func (p process) key() string { return fmt.Sprintf("%d@%s", p.pid, p.start) }

func (p process) String() string {
	what := fmt.Sprintf("pid %d (%s, state %s, parent %d)", p.pid, p.comm, p.state, p.ppid)
	if netns := p.link("ns/net"); netns != "" && netns != self.link("ns/net") {
		what += ", " + netns
	}
	return what
}

// link reads a symlink in the process's directory in /proc; "" if the process is gone.
func (p process) link(name string) string {
	target, _ := os.Readlink(filepath.Join("/proc", strconv.Itoa(p.pid), name))
	return target
}

var self = process{pid: os.Getpid()}

// listDescendants returns the descendants of this process, zombies included.
func listDescendants() map[string]string {
	list := map[string]string{}
	all := allProcesses()
	for _, p := range all {
		if isDescendant(p, all) {
			list[p.key()] = p.String()
		}
	}
	return list
}

// isDescendant reports whether p is a descendant of this process.
func isDescendant(p process, all map[int]process) bool {
	return isOrBelow(p, all, func(p process) bool { return p.ppid == self.pid })
}

// isOrBelow reports whether is holds for p or one of its ancestors.
func isOrBelow(p process, all map[int]process, is func(process) bool) bool {
	for range len(all) { // bounded, because parents may change meanwhile
		if is(p) {
			return true
		}
		parent, ok := all[p.ppid]
		if !ok {
			return false
		}
		p = parent
	}
	return false
}

// listBoxProcesses returns processes that look like parts of a box: an orphan of a killed launcher is
// no longer a descendant of this process.
func listBoxProcesses() map[string]string {
	list := map[string]string{}
	all := allProcesses()
	others := findStrangers(all)
	for _, p := range all {
		if p.pid != self.pid && !isDescendant(p, all) && looksLikeBox(p) && !others.own(p, all) {
			list[p.key()] = p.String()
		}
	}
	return list
}

// looksLikeBox looks at executable, owner and cgroup.
func looksLikeBox(p process) bool {
	exe := p.link("exe")
	if strings.Contains(exe, "memfd:boxd-") || strings.Contains(exe, "boxd-init") || exe != "" && exe == self.link("exe") {
		return true
	}
	dir := filepath.Join("/proc", strconv.Itoa(p.pid))
	var st syscall.Stat_t
	if syscall.Stat(dir, &st) == nil && st.Uid >= firstBoxID && st.Uid <= lastBoxID {
		return true
	}
	cgroups, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
	return strings.Contains(string(cgroups), ":/boxd")
}

// allProcesses reads /proc. It omits processes that end meanwhile.
func allProcesses() map[int]process {
	all := map[int]process{}
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join("/proc", e.Name(), "stat"))
		if err != nil {
			continue
		}
		if p, ok := parseStat(pid, string(stat)); ok {
			all[pid] = p
		}
	}
	return all
}

// parseStat parses /proc/<pid>/stat: proc_pid_stat(5), fields 2, 3, 4 and 22. The name is in
// parentheses and may itself contain spaces and parentheses.
func parseStat(pid int, stat string) (process, bool) {
	open, closing := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if open < 0 || closing < open {
		return process{}, false
	}
	fields := strings.Fields(stat[closing+1:])
	if len(fields) < 20 {
		return process{}, false
	}
	ppid, err := strconv.Atoi(fields[1])
	return process{pid: pid, ppid: ppid, start: fields[19], comm: stat[open+1 : closing], state: fields[0]}, err == nil
}
