package agent

import (
	"errors"
	"os"
	"runtime"
	"unsafe"

	"github.com/boxd/boxd/agent/wire"
	"golang.org/x/sys/unix"
)

// thread serves one client after another: a daemon connects again after a crash. It waits
// in the kernel and starts commands itself, so that a request wakes only the thread that
// carries it out.
//
// On hosts with cgroup v1 controllers the thread is in the box's cgroups for commands, apart
// from the rest of the agent: the children of a thread start in the thread's cgroups.
func (a *agent) thread(placed chan<- struct{}) {
	runtime.LockOSThread()
	err := errors.Join(enter(a.home), nameThread(wire.SpawnerName))
	if a.sandbox == nil { // otherwise its children are our own programs, which need the privileges
		err = errors.Join(err, renounce())
	}
	if err != nil {
		os.Exit(1) // commands must not run outside the limits
	}
	placed <- struct{}{}
	for {
		fd, _, err := unix.Accept4(int(a.listener.Fd()), unix.SOCK_CLOEXEC)
		switch err {
		case nil:
			conn := wire.BlockingConn(fd)
			a.serving.Store(conn, fd)
			a.serve(conn)
			a.serving.Delete(conn)
		case unix.EINTR, unix.ECONNABORTED:
		default:
			if a.ending.Load() {
				select {} // lingerOn ends the process
			}
			os.Exit(1) // a box that no client can reach is useless
		}
	}
}

// nameThread names the calling thread, for the launcher and for people.
func nameThread(name string) error {
	p, err := unix.BytePtrFromString(name)
	if err != nil {
		return err
	}
	return os.NewSyscallError("prctl", unix.Prctl(unix.PR_SET_NAME, uintptr(unsafe.Pointer(p)), 0, 0, 0))
}

// enter moves the calling thread into the cgroups behind tasks files.
func enter(tasks []*os.File) error {
	for _, f := range tasks {
		if _, err := write(int(f.Fd()), []byte("0")); err != nil {
			return os.NewSyscallError("entering cgroup", err)
		}
	}
	return nil
}

// serve answers one connection until it ends or breaks a rule.
func (a *agent) serve(conn *wire.Conn) {
	c := newClient(conn)
	defer a.reaper.hangUp(conn)
	defer a.nursery.hangUp(c)
	defer c.leave()
	for {
		frame, err := conn.Receive()
		if err != nil {
			return
		}
		ok := a.handle(c, frame)
		frame.Close()
		if !ok {
			return
		}
	}
}

// handle carries out a frame. It returns false if the peer broke a rule.
func (a *agent) handle(c *client, frame *wire.Frame) bool {
	switch frame.Type {
	case wire.TypeSpawn:
		var m wire.SpawnMsg
		if m.Unmarshal(frame.Body) != nil || len(frame.FDs) != wire.SpawnFDs+int(m.Tasks) {
			return false
		}
		k := key{c.conn, frame.ID}
		a.reaper.birth(k, func(child *int32) (int, *wire.FailedMsg) {
			return a.spawn(&m, frame.FDs, child)
		}, func(_ int, failed *wire.FailedMsg) { tell(k, failed) })
	case wire.TypeSignal:
		var m wire.SignalMsg
		if m.Unmarshal(frame.Body) != nil || len(frame.FDs) != 0 {
			return false
		}
		a.reaper.signal(key{c.conn, frame.ID}, unix.Signal(m.Signal))
	case wire.TypeZygote, wire.TypeSpare, wire.TypeUse:
		return a.handleWarm(c, frame)
	case wire.TypeLaunch, wire.TypeList, wire.TypeForget:
		return a.handleRequest(c, frame)
	default:
		return a.handleManaged(c, frame)
	}
	return true
}
