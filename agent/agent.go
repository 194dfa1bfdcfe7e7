package agent

/*
#include "signals.h"
*/
import "C"

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/boxd/boxd/agent/wire"
	_ "github.com/boxd/boxd/internal/smallmem"
	"github.com/boxd/boxd/internal/version"
	"golang.org/x/sys/unix"
)

// ControlFD is the descriptor of the agent's connection to the launcher.
const ControlFD = 3

// agent is the state of PID 1.
type agent struct {
	reaper   *reaper
	managed  *table
	nursery  *nursery
	sandbox  *sandbox   // in which commands run; nil if they run in the box itself
	self     *os.File   // the binary that runs here, O_PATH
	listener *os.File   // listening socket, blocking
	home     []*os.File // v1 tasks files of the threads that start commands
	threads  int        // how many such threads there are
	lifeline bool       // the box ends with the launcher's connection
	linger   time.Duration
	serving  sync.Map    // clients' connections, *wire.Conn, with their descriptors
	unpacks  bool        // commands of user 0 have capabilities over files
	ending   atomic.Bool // the box is ending and serves no client any more
}

// Main runs PID 1. It returns only when the box is to end.
func Main() error {
	// Commands must not inherit the launcher's setting. The memory that is in use by now, and
	// the rest of the memory that threads.c names, stays in small pages.
	_ = unix.Prctl(unix.PR_SET_THP_DISABLE, 0, 0, 0, 0) // fails on kernels without huge pages
	// No signal may end the box. Commands cannot even send one, because no command has the agent's user.
	if errno := unix.Errno(C.boxd_take_signals()); errno != 0 {
		return os.NewSyscallError("sigaction", errno)
	}
	control, err := wire.FileConn(os.NewFile(ControlFD, "control"))
	if err != nil {
		return err
	}
	frame, err := control.Receive()
	if err != nil {
		return fmt.Errorf("receiving init: %w", err)
	}
	a, err := setUp(frame)
	if err != nil {
		failed := wire.FailedMsg{Step: err.Error(), Errno: unix.EINVAL}
		if other, ok := errors.AsType[*otherBuild](err); ok {
			failed = wire.FailedMsg{Step: other.Error(), Errno: unix.EPROTONOSUPPORT}
		}
		_ = control.Send(wire.TypeFailed, frame.ID, failed.Marshal())
		return err
	}
	// Wait until all threads are in their cgroups.
	placed := make(chan struct{})
	for range a.threads {
		go a.thread(placed)
	}
	for range a.threads {
		<-placed
	}
	if err := control.Send(wire.TypeReady, frame.ID, nil); err != nil {
		return err
	}
	go a.watch(control)
	return a.reaper.run()
}

// otherBuild is the version of a launcher that was built from other sources than this program.
type otherBuild struct{ launcher string }

func (o *otherBuild) Error() string {
	return fmt.Sprintf("the program for PID 1 of boxes is version %s, boxd-init is version %.100q: install both from one build", version.Version, o.launcher)
}

// setUp takes the descriptors of the Init frame and hardens the process.
func setUp(frame *wire.Frame) (*agent, error) {
	defer frame.Close()
	var m wire.InitMsg
	if frame.Type != wire.TypeInit {
		return nil, fmt.Errorf("receiving init: type %d: %w", frame.Type, wire.ErrProtocol)
	}
	if err := m.Unmarshal(frame.Body); m.Version != version.Version {
		return nil, &otherBuild{m.Version}
	} else if err != nil {
		return nil, err
	}
	if len(frame.FDs) != 1+int(m.HomeTasks)+m.Sandbox.SandboxFDs() {
		return nil, fmt.Errorf("receiving init: %d descriptors: %w", len(frame.FDs), wire.ErrProtocol)
	}
	if err := unix.SetNonblock(frame.FDs[0], false); err != nil {
		return nil, os.NewSyscallError("taking listening socket", err)
	}
	if err := limitResources(); err != nil {
		return nil, err
	}
	// A descriptor, because each use of a path would look it up again, in a child that may
	// lack the rights for that.
	self, err := os.OpenFile("/proc/self/exe", unix.O_PATH, 0)
	if err != nil {
		return nil, err
	}
	files := frame.Files()
	own := 1 + int(m.HomeTasks)
	managed := new(table)
	reaper := newReaper(managed.exited)
	var box *sandbox
	if m.Sandbox != nil {
		box, err = startSandbox(m.Sandbox, self, files[own:])
		if err != nil {
			return nil, err
		}
		reaper.sandbox = box.pid
	} else {
		supervisor, err := newSupervisor(m.Sockets)
		if err != nil {
			return nil, err
		}
		listener, err := harden(m.Filter)
		if err != nil {
			return nil, err
		}
		go supervisor.run(listener)
	}
	return &agent{
		reaper:   reaper,
		managed:  managed,
		nursery:  newNursery(reaper),
		sandbox:  box,
		self:     self,
		listener: files[0],
		home:     files[1:own],
		threads:  int(m.Spawners),
		lifeline: m.Lifeline,
		unpacks:  m.Unpacks,
		linger:   time.Duration(m.Linger) * time.Millisecond,
	}, nil
}

// watch waits for the end of the launcher's connection, which carries no more frames.
func (a *agent) watch(control *wire.Conn) {
	frame, err := control.Receive()
	if err == nil {
		frame.Close()
	}
	control.Close()
	if a.lifeline {
		a.lingerOn()
		os.Exit(0)
	}
}

// lingerOn waits until this box may end. Meanwhile the box serves no client, and its
// commands are killed, including one that was just starting.
func (a *agent) lingerOn() {
	if a.linger <= 0 {
		return
	}
	a.ending.Store(true)
	_ = unix.Shutdown(int(a.listener.Fd()), unix.SHUT_RDWR)
	for end := time.Now().Add(a.linger); ; time.Sleep(10 * time.Millisecond) {
		a.serving.Range(func(_, fd any) bool {
			_ = unix.Shutdown(fd.(int), unix.SHUT_RDWR)
			return true
		})
		_ = unix.Kill(-1, unix.SIGKILL) // all but this process
		if time.Now().After(end) {
			return
		}
	}
}
