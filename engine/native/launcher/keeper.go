package launcher

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/opencontainers/runc/libcontainer/exeseal"
	"golang.org/x/sys/unix"
)

// Keeper holds the socket of a launcher service and runs the launcher, restarting it when
// it dies, until the launcher ends on request. The keeper is so small that nothing should
// make it die; if it does, the launcher continues.
//
// The keeper is also the subreaper of boxes whose launcher is gone, so that none stays a
// zombie on a host whose process 1 does not reap orphans.
func Keeper(o ServiceOptions) error {
	if !exeseal.IsSelfExeCloned() {
		return executeSealed(o.args("keeper"))
	}
	if o.programs.Agent == nil {
		return errNoPrograms
	}
	unix.Umask(0o022)
	signal.Ignore(unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	if err := becomeSubreaper(); err != nil {
		return err
	}
	if err := makeStateDir(o.StateDir); err != nil {
		return err
	}
	lock, err := os.Open(o.StateDir) // no other lock is on the directory itself
	if err != nil {
		return err
	}
	defer lock.Close()
	// A launcher that a keeper was starting when it was killed has the lock until it runs its program.
	for end := time.Now().Add(time.Second); ; time.Sleep(5 * time.Millisecond) {
		if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			break
		}
		if err != unix.EWOULDBLOCK || time.Now().After(end) {
			return fmt.Errorf("state directory %q: another keeper is at work there: %w", o.StateDir, err)
		}
	}
	listener, err := o.makeSocket()
	if err != nil {
		return err
	}
	socket, err := listener.File()
	if err := errors.Join(err, listener.Close()); err != nil {
		return err
	}
	defer socket.Close()
	k := &keeper{options: o, socket: socket, stop: make(chan struct{})}
	go k.passOn()
	return errors.Join(k.run(), os.Remove(filepath.Join(o.StateDir, rpc.SocketName)))
}

// Pauses before a launcher that died within quickDeath is restarted. A launcher that exits by
// itself will most likely do so again, so its pause grows up to lastDelay. One that was killed
// has clients that wait for it.
const (
	quickDeath  = time.Second
	firstDelay  = 20 * time.Millisecond
	killedDelay = 100 * time.Millisecond // at most
	lastDelay   = 5 * time.Second
)

type keeper struct {
	options ServiceOptions
	socket  *os.File
	stop    chan struct{} // closed by SIGTERM

	mu  sync.Mutex
	pid int // of the launcher, 0 without one
}

// passOn hands SIGTERM to the launcher.
func (k *keeper) passOn() {
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, unix.SIGTERM)
	<-terminated
	close(k.stop)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pid > 0 {
		_ = unix.Kill(k.pid, unix.SIGTERM) // not waited for yet: the number is its own
	}
}

// lingerTime is how long the last threads of a launcher may take to end.
const lingerTime = time.Second

// watch exits the keeper when the launcher has ended on request except for a thread that
// hangs in the kernel. Such a launcher cannot be reaped until the thread ends.
func (k *keeper) watch(pid int) {
	for lingered := false; ; {
		time.Sleep(lingerTime)
		k.mu.Lock()
		gone := k.pid != pid
		k.mu.Unlock()
		if gone {
			return
		}
		thread, lingers := linux.Lingers(pid)
		if lingers && lingered && exitedWell(pid) {
			fmt.Fprintf(os.Stderr, "boxd-init: the launcher has ended but for a thread that hangs in the kernel: %v\n", thread)
			_ = os.Remove(filepath.Join(k.options.StateDir, rpc.SocketName))
			os.Exit(0)
		}
		lingered = lingers
	}
}

// exitedWell reports whether the first thread of a process has ended with status 0: field 52
// of /proc/<pid>/stat (proc_pid_stat(5)).
func exitedWell(pid int) bool {
	stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:])) // from field 3 on
	return len(fields) >= 50 && fields[49] == "0"
}

// run starts launchers until one ends on request.
func (k *keeper) run() error {
	delay := firstDelay
	for {
		began := time.Now()
		status, err := k.runOnce()
		if k.stopped() || err == nil && status.Exited() && status.ExitStatus() == 0 {
			return nil
		}
		why := fmt.Sprintf("status %d", status.ExitStatus())
		switch {
		case err != nil: // such as a lack of memory, which may pass
			why = oneline.Error(err)
		case status.Signaled():
			why = status.Signal().String()
		}
		if _, err := os.Stat(k.options.StateDir); err != nil {
			return fmt.Errorf("the launcher ended (%s), and its state directory is gone: %w", why, err)
		}
		fmt.Fprintf(os.Stderr, "boxd-init: the launcher ended (%s), starting it again\n", why)
		if time.Since(began) > quickDeath {
			delay = firstDelay
			continue
		}
		select {
		case <-time.After(delay):
		case <-k.stop:
			return nil
		}
		if delay = min(2*delay, lastDelay); status.Signaled() {
			delay = min(delay, killedDelay)
		}
	}
}

func (k *keeper) stopped() bool {
	select {
	case <-k.stop:
		return true
	default:
		return false
	}
}

// runOnce runs one launcher to its end.
func (k *keeper) runOnce() (status unix.WaitStatus, err error) {
	pid, err := k.start()
	if err != nil || pid == 0 {
		return 0, err
	}
	for {
		err := linux.Retry(func() error { return unix.Waitid(unix.P_ALL, 0, nil, unix.WEXITED|unix.WNOWAIT, nil) })
		if err != nil {
			return 0, os.NewSyscallError("waitid", err)
		}
		if ended, err := k.reap(&status); ended == pid || err != nil {
			return status, err
		}
	}
}

// reap reaps one process that has ended: the launcher, or an orphan of a box. It holds mu,
// because passOn must not signal a number that is free.
func (k *keeper) reap(status *unix.WaitStatus) (pid int, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	pid, err = unix.Wait4(-1, status, unix.WNOHANG, nil)
	if pid == k.pid {
		k.pid = 0
	}
	return pid, os.NewSyscallError("wait4", err)
}

// start starts a launcher from the sealed copy that this process runs from. It returns 0 if
// the keeper was told to stop.
func (k *keeper) start() (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.pid = 0
	if k.stopped() {
		return 0, nil
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	args := append(append(k.options.args("launcher", "--service"), "--prepared"), k.options.programs.Args(listenFD+1)...)
	pid, _, err := syscall.StartProcess("/proc/self/exe", args, &syscall.ProcAttr{
		Dir:   "/",
		Env:   append(os.Environ(), "LISTEN_FDS=1", "LISTEN_PID="+keeperPID),
		Files: []uintptr{null.Fd(), null.Fd(), 2, k.socket.Fd(), k.options.programs.Agent.Fd(), k.options.programs.Unpacker.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true, Cloneflags: unix.CLONE_NEWNS},
	})
	if err != nil {
		return 0, fmt.Errorf("starting launcher: %w", err)
	}
	k.pid = pid
	go k.watch(pid)
	return pid, nil
}
