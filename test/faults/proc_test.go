package faults

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// proc is a process that descends from this one.
type proc struct {
	pid, ppid int
	state     string
	start     string // with pid it identifies the process
	args      []string
	command   bool // of an agent, before it executes its program: until then it looks like the agent
}

func (p proc) String() string {
	where, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", p.pid))
	return fmt.Sprintf("pid %d (parent %d, state %s, %q, waits in %s)", p.pid, p.ppid, p.state, p.args, where)
}

// is says whether p is one of our programs in a role.
func (p proc) is(role string) bool { return len(p.args) > 1 && p.args[1] == role }

// isLauncher tells a launcher from the copy of itself that its fork is before it
// executes libcontainer's stage.
func (p proc) isLauncher() bool { return p.is("launcher") }

// isInit says whether p is PID 1 of a box, or about to become it.
func (p proc) isInit() bool { return (p.is("agent") || p.is("init")) && !p.command }

func (p proc) isZombie() bool { return p.state == "Z" || p.state == "X" }

// descendants lists the processes below root, itself left out.
func descendants(root int) []proc {
	all := map[int]proc{}
	names, _ := filepath.Glob("/proc/[0-9]*")
	for _, name := range names {
		if p, ok := readProc(name); ok {
			all[p.pid] = p
		}
	}
	var found []proc
	for _, p := range all {
		p.command = p.is("agent") && all[p.ppid].is("agent")
		up, ok := p, true
		for range len(all) { // a bound: parents may change while we look
			if up, ok = all[up.ppid], up.ppid != root; !ok {
				found = append(found, p)
				break
			}
			if up.pid == 0 {
				break
			}
		}
	}
	return found
}

func readProc(dir string) (proc, bool) {
	pid, _ := strconv.Atoi(filepath.Base(dir))
	stat, err := os.ReadFile(dir + "/stat")
	end := bytes.LastIndexByte(stat, ')')
	if err != nil || end < 0 {
		return proc{}, false
	}
	fields := strings.Fields(string(stat[end+1:]))
	if len(fields) < 20 {
		return proc{}, false
	}
	ppid, _ := strconv.Atoi(fields[1])
	cmdline, _ := os.ReadFile(dir + "/cmdline")
	args := strings.Split(strings.TrimSuffix(string(cmdline), "\x00"), "\x00")
	return proc{pid: pid, ppid: ppid, state: fields[0], start: fields[19], args: args}, true
}

// waitGone waits until no descendant of this process is left but those in keep,
// and takes the status of those that were adopted. What is left after patience is
// an error of the test, and is killed.
func waitGone(t testing.TB, patience time.Duration, keep ...int) {
	t.Helper()
	deadline := time.Now().Add(patience)
	// Nothing announces the end of processes that are not our children: they are
	// polled for.
	for pause := time.Millisecond; ; pause = min(2*pause, 50*time.Millisecond) {
		left := reapAdopted(keep)
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			for _, p := range left {
				t.Errorf("still there after %v: %v", patience, p)
				_ = unix.Kill(p.pid, unix.SIGKILL)
			}
			for range 100 {
				if len(reapAdopted(keep)) == 0 {
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
			return
		}
		time.Sleep(pause)
	}
}

// reapAdopted takes the status of dead children that lost their own parent, and
// returns the descendants that are left. No command of os/exec may be running in
// this process but those in keep.
func reapAdopted(keep []int) (left []proc) {
	self := os.Getpid()
next:
	for _, p := range descendants(self) {
		for _, k := range keep {
			if p.pid == k || p.ppid == k {
				continue next
			}
		}
		if p.isZombie() && p.ppid == self {
			if _, err := unix.Wait4(p.pid, nil, unix.WNOHANG, nil); err == nil || errors.Is(err, unix.ECHILD) {
				continue
			}
		}
		left = append(left, p)
	}
	return left
}
