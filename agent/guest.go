package agent

/*
#include "spawn.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"golang.org/x/sys/unix"
)

// GuestInit is PID 1 of a sandbox. It only reaps: SIGCHLD is ignored, so the kernel does it.
func GuestInit() {
	signal.Ignore(unix.SIGCHLD)
	for {
		time.Sleep(time.Hour)
	}
}

// Guest runs one command in a sandbox, for Enter outside. It is the subreaper of everything that
// the command starts, and lives until all of that has ended. When Enter is gone, it kills it. Its
// user is not one that a command can have, so no command can signal it.
func Guest() error {
	orders, reports := os.NewFile(wire.GuestOrders, "orders"), os.NewFile(wire.GuestReports, "reports")
	unix.CloseOnExec(wire.GuestOrders)
	unix.CloseOnExec(wire.GuestReports)
	runtime.LockOSThread()
	kind, body, err := receive(orders)
	if err != nil {
		return err
	}
	var m wire.SpawnMsg
	if kind != orderSpawn || len(body) == 0 {
		return fmt.Errorf("order of kind %q: %w", kind, wire.ErrProtocol)
	}
	if err := m.Unmarshal(body[1:]); err != nil {
		return err
	}
	pid, failed := startGuest(&m, body[0])
	if failed != nil {
		err := send(reports, reportFailed, failed.Marshal())
		return errors.Join(err, new(guest).reap(reports)) // the child that failed may not have ended yet
	}
	_ = send(reports, reportStarted, nil) // if Enter is gone, orders has ended as well
	g := &guest{main: pid}
	g.running.Store(true)
	go g.obey(orders)
	return g.reap(reports)
}

// startGuest starts the command with the stdio of this process, and lets go of it.
func startGuest(m *wire.SpawnMsg, nulls byte) (int, *wire.FailedMsg) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return 0, failed("becoming a subreaper", err)
	}
	for _, c := range []uintptr{unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_KILL, unix.CAP_SETPCAP} {
		if err := unix.Prctl(unix.PR_CAPBSET_DROP, c, 0, 0, 0); err != nil {
			return 0, failed("dropping capabilities", err)
		}
	}
	self, err := os.OpenFile("/proc/self/exe", unix.O_PATH, 0)
	if err != nil {
		return 0, failed(wire.StepClone, err)
	}
	defer self.Close()
	null, err := os.OpenFile("/dev/null", os.O_RDWR, 0)
	if err != nil {
		return 0, failed(wire.StepClone, err)
	}
	defer null.Close()
	fds := []int{-1, -1, -1, -1}
	for i := range 3 {
		from := uintptr(i)
		if nulls&(1<<i) != 0 {
			from = null.Fd() // which has a name here, unlike the host's
		}
		if fds[i], err = unix.FcntlInt(from, unix.F_DUPFD_CLOEXEC, 64); err == nil {
			err = unix.Dup3(int(null.Fd()), i, 0)
		}
		if err != nil {
			return 0, failed(wire.StepClone, err)
		}
	}
	defer closeFDs(fds)
	m.Tasks = 0
	m.Rlimits = slices.DeleteFunc(m.Rlimits, func(r wire.Rlimit) bool { return !slices.Contains(guestRlimits, r.Resource) })
	return start(m, fds, birth{self: self, place: C.PLACE_GUEST})
}

// isNull reports whether a descriptor is the host's /dev/null.
func isNull(fd int) bool {
	var st unix.Stat_t
	return unix.Fstat(fd, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR && st.Rdev == unix.Mkdev(1, 3)
}

// guestRlimits are the limits that gVisor's prlimit64 accepts (setableLimits in its
// pkg/sentry/syscalls/linux/sys_rlimit.go), of those that commands get. The others bound objects
// of the host's kernel.
var guestRlimits = []uint32{unix.RLIMIT_CORE, unix.RLIMIT_NOFILE, unix.RLIMIT_FSIZE, unix.RLIMIT_MEMLOCK, unix.RLIMIT_NPROC}

// guest is the running command.
type guest struct {
	main    int
	running atomic.Bool // main has not been reaped; false before another process may get its number
}

// obey passes signals on, and kills everything when Enter is gone.
func (g *guest) obey(orders *os.File) {
	for {
		kind, body, err := receive(orders)
		if err != nil {
			break
		}
		if len(body) != 1 {
			continue
		}
		sig := unix.Signal(body[0])
		switch {
		case kind == orderTree:
			for _, pid := range descendants() {
				_ = unix.Kill(pid, sig)
			}
		case !g.running.Load():
		case sig == unix.SIGINT || sig == unix.SIGQUIT:
			_ = unix.Kill(-g.main, sig) // as reaper.signal
		default:
			_ = unix.Kill(g.main, sig)
		}
	}
	for {
		killDescendants() // until there is none, and reap ends this process
		time.Sleep(time.Millisecond)
	}
}

// reap waits for all descendants, and reports the end of the command. It must not return before the last
// of them: runsc has started this process without a parent, so gVisor finds no process that could
// inherit them, takes this for the end of PID 1, and kills the whole sandbox
// (Task.exitChildren in pkg/sentry/kernel/task_exit.go).
func (g *guest) reap(reports *os.File) error {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
		case err == unix.ECHILD:
			return nil
		case err != nil:
			return os.NewSyscallError("wait4", err)
		case pid == g.main && status.Stopped(): // see reaper.run
			_ = unix.Kill(pid, unix.SIGKILL)
		case pid == g.main:
			g.running.Store(false)
			left := byte(1)
			if _, err := unix.Wait4(-1, nil, unix.WNOHANG|unix.WALL, nil); err == unix.ECHILD {
				left = 0
			}
			m := wire.ExitedMsg{Status: uint32(status)}
			_ = send(reports, reportExited, append([]byte{left}, m.Marshal()...)) // Enter may be gone
			if left == 0 {
				return nil
			}
		}
	}
}

// killDescendants kills all descendants of this process that it finds. It stops them first, so that
// none forks meanwhile.
func killDescendants() {
	stopped := map[int]bool{}
	for {
		fresh := false
		for _, pid := range descendants() {
			if !stopped[pid] {
				_ = unix.Kill(pid, unix.SIGSTOP)
				stopped[pid], fresh = true, true
			}
		}
		if !fresh {
			break
		}
	}
	for pid := range stopped {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
}

// descendants lists the processes below this one. No one else waits for them, so their numbers are
// not used again before reap has them; a number that was is of another of them.
func descendants() (list []int) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil
	}
	children := map[int][]int{}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		stat, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue
		}
		// The name of the program, in parentheses, may contain anything.
		fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
		if len(fields) > 1 {
			parent, _ := strconv.Atoi(fields[1])
			children[parent] = append(children[parent], pid)
		}
	}
	next := []int{os.Getpid()}
	for len(next) > 0 {
		pid := next[0]
		next = append(next[1:], children[pid]...)
		list = append(list, children[pid]...)
	}
	return list
}
