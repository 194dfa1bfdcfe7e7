package linux

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Wait describes a thread and where in the kernel it waits.
type Wait struct {
	PID, TID int
	Command  string // the thread's name, up to 15 bytes
	State    byte   // as in /proc/<pid>/stat: D, S, T …
	Channel  string // the kernel function that it sleeps in, "" if unknown
}

// idleChannels are the places where a healthy thread waits for work or for another process.
// They are prefixes of function names, since the kernel's inlining differs between builds.
var idleChannels = []string{
	"futex_", "ep_poll", "do_epoll", "do_sys_poll", "poll_schedule", "do_select",
	"hrtimer_nanosleep", "do_nanosleep", "common_nsleep", "do_sigtimedwait", "do_wait", "kernel_wait", "pidfd_poll",
	"pipe_read", "anon_pipe_read", "unix_", "__skb_wait", "inet_csk_accept",
}

// IsIdle reports whether the thread waits like a healthy thread that has nothing to do.
func (w Wait) IsIdle() bool {
	switch w.State {
	case 'S', 'I':
	case 'R':
		return true
	default:
		return false
	}
	return w.Channel == "" || slices.ContainsFunc(idleChannels, func(prefix string) bool { return strings.HasPrefix(w.Channel, prefix) })
}

// String formats w, for example as "process 42 (boxd-init), state D, wchan mutex_lock".
func (w Wait) String() string {
	who := fmt.Sprintf("process %d (%s)", w.PID, w.Command)
	if w.TID != w.PID {
		who = fmt.Sprintf("thread %d of process %d (%s)", w.TID, w.PID, w.Command)
	}
	if w.Channel == "" {
		return fmt.Sprintf("%s, state %c", who, w.State)
	}
	return fmt.Sprintf("%s, state %c, wchan %s", who, w.State, w.Channel)
}

// Waits returns the threads of a process, the first thread first. It does not read the command
// line, environment, maps or stack: for these, the kernel takes locks that a hanging process
// may hold (mmap_lock, exec_update_lock). Channels are known only to callers that may trace
// the process (proc_pid_wchan in fs/proc/base.c).
func Waits(pid int) ([]Wait, error) {
	dir := fmt.Sprintf("/proc/%d/task", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var list []Wait
	for _, e := range entries {
		tid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile(filepath.Join(dir, e.Name(), "stat"))
		if err != nil {
			continue // it has exited
		}
		w := Wait{PID: pid, TID: tid}
		// pid (command) state …: the command may contain any character.
		begin, end := bytes.IndexByte(stat, '('), bytes.LastIndexByte(stat, ')')
		if begin < 0 || end < begin || end+2 >= len(stat) {
			return nil, fmt.Errorf("%s/%d/stat: unknown form", dir, tid)
		}
		w.Command, w.State = string(stat[begin+1:end]), stat[end+2]
		channel, _ := os.ReadFile(filepath.Join(dir, e.Name(), "wchan"))
		if w.Channel = string(channel); w.Channel == "0" {
			w.Channel = ""
		}
		list = append(list, w)
	}
	return list, nil
}

// Lingers reports whether a process has exited except for a thread that hangs in the kernel, and
// returns that thread. The process cannot be reaped until the thread has exited as well. Every
// process that exits with several threads lingers for a moment.
func Lingers(pid int) (thread Wait, lingers bool) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // cheap, and mostly enough
	if end := bytes.LastIndexByte(stat, ')'); err != nil || end < 0 || !bytes.HasPrefix(stat[end:], []byte(") Z")) {
		return Wait{}, false
	}
	threads, err := Waits(pid)
	if err != nil || len(threads) < 2 {
		return Wait{}, false
	}
	return Hanging(threads[1:])
}

// Hanging returns the thread of a process that most likely keeps others waiting: one in
// uninterruptible sleep, else a stopped one, else one that is not idle, else the first one.
func Hanging(threads []Wait) (worst Wait, found bool) {
	rank := func(w Wait) int {
		switch {
		case w.State == 'D':
			return 3
		case w.State == 'T' || w.State == 't':
			return 2
		case !w.IsIdle():
			return 1
		}
		return 0
	}
	for _, w := range threads {
		if !found || rank(w) > rank(worst) {
			worst, found = w, true
		}
	}
	return worst, found
}
