package testutil

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// CatchInit calls create, which creates a box, and freezes the process that becomes PID 1 of the box:
// when it runs the agent if want is "agent", before that if want is "". The box is the first new one
// whose ID matches the pattern id. create returns at once; it closes done when the box is created.
// CatchInit returns the process ID, or 0 if create was faster. release lets the process continue; the
// test calls it at its end.
//
// The freezer of cgroup v1 holds the process like an uninterruptible sleep: SIGKILL does not end it.
// Hosts without it use cgroup2, whose frozen processes SIGKILL ends.
func CatchInit(t testing.TB, id, want string, create func() (done <-chan struct{})) (pid int, release func()) {
	t.Helper()
	RequireRoot(t)
	f := newFreezer(t)
	pattern := filepath.Join(mountOf("cgroup2"), "boxd", "*."+id, "init")
	before, _ := filepath.Glob(pattern)
	done := create()
	for {
		select {
		case <-done:
			return 0, f.release
		default:
		}
		dirs, _ := filepath.Glob(pattern)
		for _, dir := range dirs {
			if slices.Contains(before, dir) {
				continue
			}
			for _, pid := range pidsIn(dir) {
				if want == "agent" && !runsAgent(pid) {
					continue
				}
				if !f.freeze(dir, pid) {
					continue
				}
				// A process that has its filter has already said that it is ready, or is about to.
				if runsAgent(pid) != (want == "agent") || hasFilter(pid) {
					return 0, f.release
				}
				return pid, f.release
			}
		}
	}
}

type freezer struct {
	t      testing.TB
	v1     string // a frozen cgroup, if the host has the v1 freezer
	frozen []string
	once   sync.Once
}

func newFreezer(t testing.TB) *freezer {
	t.Helper()
	f := &freezer{t: t}
	t.Cleanup(f.release)
	for _, m := range readMounts() {
		if m.fstype == "cgroup" && filepath.Base(m.target) == "freezer" {
			f.v1 = filepath.Join(m.target, fmt.Sprintf("boxd-test-%d-%d", os.Getpid(), time.Now().UnixNano()))
		}
	}
	if f.v1 == "" {
		return f
	}
	if err := errors.Join(os.Mkdir(f.v1, 0o755), os.WriteFile(f.v1+"/freezer.state", []byte("FROZEN"), 0)); err != nil {
		t.Fatal(err)
	}
	return f
}

// freeze returns when the process is frozen; it returns false if the process has ended.
func (f *freezer) freeze(dir string, pid int) bool {
	state, frozen := dir+"/cgroup.events", "frozen 1"
	if f.v1 != "" {
		state, frozen = f.v1+"/freezer.state", "FROZEN"
		if os.WriteFile(f.v1+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0) != nil {
			return false
		}
	} else {
		f.frozen = append(f.frozen, dir)
		if os.WriteFile(dir+"/cgroup.freeze", []byte("1"), 0) != nil {
			return false
		}
	}
	for {
		if text, err := os.ReadFile(state); err != nil || bytes.Contains(text, []byte(frozen)) {
			return err == nil && (f.v1 == "" || slices.Contains(pidsIn(f.v1), pid))
		}
		time.Sleep(time.Millisecond)
	}
}

// runsAgent reports whether a process runs the agent already.
func runsAgent(pid int) bool {
	args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return bytes.HasSuffix(args, []byte("\x00agent\x00"))
}

// hasFilter reports whether a process has installed a system call filter.
func hasFilter(pid int) bool {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	return bytes.Contains(status, []byte("\nSeccomp:\t2"))
}

func (f *freezer) release() {
	f.once.Do(func() {
		for _, dir := range f.frozen {
			_ = os.WriteFile(dir+"/cgroup.freeze", []byte("0"), 0) // the box may be gone
		}
		if f.v1 == "" {
			return
		}
		if err := os.WriteFile(f.v1+"/freezer.state", []byte("THAWED"), 0); err != nil {
			f.t.Error(err)
		}
		// Processes that live on go back to the root of the hierarchy.
		for end := time.Now().Add(settleTime); ; {
			for _, pid := range pidsIn(f.v1) {
				_ = os.WriteFile(filepath.Dir(f.v1)+"/cgroup.procs", []byte(strconv.Itoa(pid)), 0)
			}
			err := os.Remove(f.v1)
			if err == nil || !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
				if err != nil {
					f.t.Errorf("removing a frozen cgroup: %v", err)
				}
				return
			}
			time.Sleep(10 * time.Millisecond)
		}
	})
}

// mountOf returns where the first file system of a type is mounted, or "".
func mountOf(fstype string) string {
	for _, m := range readMounts() {
		if m.fstype == fstype {
			return m.target
		}
	}
	return ""
}

func pidsIn(dir string) (pids []int) {
	text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	for field := range strings.FieldsSeq(string(text)) {
		if pid, err := strconv.Atoi(field); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}
