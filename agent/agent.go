package agent

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"

	"github.com/boxd/boxd/agent/wire"
	"golang.org/x/sys/unix"
)

// ControlFD is the descriptor on which the agent finds its connection to the
// launcher.
const ControlFD = 3

// Bounds of what clients may have under way.
const (
	maxConns = 64
	// memoryLimit is where the Go runtime starts to work hard at staying small.
	memoryLimit = 8 << 20
)

// agent is the state of PID 1.
type agent struct {
	reaper   *reaper
	spawners *spawners
	listener net.Listener
}

// Main is the life of PID 1. It returns only when the box shall end.
func Main() error {
	debug.SetMemoryLimit(memoryLimit)
	debug.SetGCPercent(50)
	runtime.GOMAXPROCS(2)
	// Nothing that a command sends may end the box. It may not even send: the
	// agent's user is no command's. Second line of defence. Caught and dropped, not
	// ignored: commands would inherit that (execve(2)), and no ^C, SIGTERM or
	// SIGPIPE would end them.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGPIPE,
		unix.SIGALRM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU)
	control, err := wire.FileConn(os.NewFile(ControlFD, "control"))
	if err != nil {
		return err
	}
	frame, err := control.Receive()
	if err != nil {
		return fmt.Errorf("receiving init: %w", err)
	}
	a, lifeline, err := start(frame)
	if err != nil {
		failed := wire.FailedMsg{Step: err.Error(), Errno: unix.EINVAL}
		_ = control.Send(wire.TypeFailed, frame.ID, failed.Marshal())
		return err
	}
	if err := control.Send(wire.TypeReady, frame.ID, nil); err != nil {
		return err
	}
	go func() {
		a.serve(control)
		if lifeline {
			os.Exit(0)
		}
	}()
	go a.accept()
	return a.reaper.run()
}

// start takes the descriptors of the Init frame and hardens the process.
func start(frame *wire.Frame) (*agent, bool, error) {
	defer frame.Close()
	var m wire.InitMsg
	if frame.Type != wire.TypeInit {
		return nil, false, fmt.Errorf("receiving init: type %d: %w", frame.Type, wire.ErrProtocol)
	}
	if err := m.Unmarshal(frame.Body); err != nil {
		return nil, false, err
	}
	if len(frame.Files) != 1+int(m.HomeTasks) {
		return nil, false, fmt.Errorf("receiving init: %d descriptors: %w", len(frame.Files), wire.ErrProtocol)
	}
	listener, err := net.FileListener(frame.Files[0])
	if err != nil {
		return nil, false, fmt.Errorf("taking listening socket: %w", err)
	}
	home := frame.Files[1:]
	frame.Files = frame.Files[:1] // home tasks stay open
	r := newReaper()
	a := &agent{reaper: r, spawners: newSpawners(r, home, int(m.Spawners)), listener: listener}
	if err := harden(m.Policy); err != nil {
		return nil, false, err
	}
	return a, m.Lifeline, nil
}

// accept serves every client that connects: a daemon that comes back after a
// crash connects again.
func (a *agent) accept() {
	slots := make(chan struct{}, maxConns)
	for {
		slots <- struct{}{}
		c, err := a.listener.Accept()
		if err != nil {
			<-slots
			if errors.Is(err, net.ErrClosed) {
				return
			}
			continue
		}
		go func() {
			a.serve(wire.NewConn(c.(*net.UnixConn)))
			<-slots
		}()
	}
}

// serve answers one connection until it ends or breaks a rule.
func (a *agent) serve(conn *wire.Conn) {
	defer conn.Close()
	for {
		frame, err := conn.Receive()
		if err != nil {
			return
		}
		if !a.handle(conn, frame) {
			frame.Close()
			return
		}
	}
}

// handle starts what a frame asks for; false means that the peer broke a rule.
// It takes ownership of the frame's descriptors only for a valid Spawn.
func (a *agent) handle(conn *wire.Conn, frame *wire.Frame) bool {
	switch frame.Type {
	case wire.TypeSpawn:
		m := new(wire.SpawnMsg)
		if m.Unmarshal(frame.Body) != nil || len(frame.Files) != wire.SpawnFDs+int(m.Tasks) {
			return false
		}
		a.spawners.start(birth{conn: conn, id: frame.ID, msg: m, frame: frame})
	case wire.TypeSignal:
		var m wire.SignalMsg
		if m.Unmarshal(frame.Body) != nil || len(frame.Files) != 0 {
			return false
		}
		a.reaper.signal(conn, frame.ID, unix.Signal(m.Signal))
	default:
		return false
	}
	return true
}
