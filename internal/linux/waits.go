package linux

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Wait is a thread and where in the kernel it waits.
type Wait struct {
	PID, TID int
	Command  string // of the thread, up to 15 bytes
	State    byte   // as in /proc/<pid>/stat: D, S, T …
	Channel  string // the kernel function that it sleeps in, or "" if that is not known
}

// idleChannels are where a healthy thread waits for work or for another process: beginnings
// of names, since the kernel's inlining differs from build to build.
var idleChannels = []string{
	"futex_", "ep_poll", "do_epoll", "do_sys_poll", "poll_schedule", "do_select",
	"hrtimer_nanosleep", "do_nanosleep", "common_nsleep", "do_sigtimedwait", "do_wait", "kernel_wait", "pidfd_poll",
	"pipe_read", "anon_pipe_read", "unix_", "__skb_wait", "inet_csk_accept",
}

// IsIdle says whether the thread waits as one does that has nothing to do.
func (w Wait) IsIdle() bool {
	switch w.State {
	case 'S', 'I':
	case 'R':
		return true
	default:
		return false
	}
	if w.Channel == "" {
		return true
	}
	for _, name := range idleChannels {
		if strings.HasPrefix(w.Channel, name) {
			return true
		}
	}
	return false
}

// String says it in one piece: process 42 (boxd-init), state D, wchan mutex_lock.
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

// Waits returns the threads of a process, its first one first. It reads only what the kernel
// tells without a lock that a hanging process may hold: not its command line, environment,
// maps or stack (mmap_lock, exec_update_lock). Channels are known to those who may trace the
// process (proc_pid_wchan in fs/proc/base.c).
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
			continue // it has ended
		}
		w := Wait{PID: pid, TID: tid}
		// pid (command) state …: the command may hold anything.
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

// Lingers says whether a process has ended but for a thread that hangs in the kernel, and which:
// nobody can wait for it until that thread has ended too. For a moment it is true of each process
// that ends with several threads.
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

// Hanging returns the thread of a process that most likely keeps others waiting: one in an
// uninterruptible sleep, else one that is stopped, else one that waits where healthy threads
// do not, else the first.
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
