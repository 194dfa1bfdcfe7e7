package launcher

import (
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/version"
	"golang.org/x/sys/unix"
)

// socketName is the agent's listening socket in the box's directory, which the
// box itself cannot see.
const socketName = "agent.sock"

// openControl makes the agent's first connection and its listening socket.
func (l *Launcher) openControl(b *box) (*wire.Conn, *os.File, error) {
	dir, name, err := b.socketAddress()
	if err != nil {
		return nil, nil, err
	}
	defer dir.Close()
	addr := &net.UnixAddr{Name: name, Net: "unix"}
	listener, err := net.ListenUnix("unix", addr)
	if err != nil {
		return nil, nil, fmt.Errorf("making agent socket: %w", err)
	}
	listener.SetUnlinkOnClose(false)
	if err := os.Chmod(addr.Name, 0o600); err != nil {
		listener.Close()
		return nil, nil, fmt.Errorf("making agent socket: %w", err)
	}
	b.listener, err = listener.File()
	listener.Close()
	if err != nil {
		return nil, nil, fmt.Errorf("making agent socket: %w", err)
	}
	return wire.Pair()
}

// socketAddress names the agent's socket by a descriptor of its directory, because a path
// may be longer than the 107 bytes of an address (unix(7)). The caller closes dir.
func (b *box) socketAddress() (dir *os.File, name string, err error) {
	dir, err = linux.Openat2(nil, b.dir, unix.OpenHow{Flags: unix.O_PATH | unix.O_DIRECTORY})
	if err != nil {
		return nil, "", fmt.Errorf("opening directory of box: %w", err)
	}
	return dir, linux.FdPath(dir) + "/" + socketName, nil
}

// maxSockets is how many sockets a box may have at once. Programs need netlink sockets only
// one at a time, to look up names or interfaces. A socket with full queues holds about
// 300 KB that no memory limit counts.
var maxSockets = wire.Sockets{Netlink: 32, Inet: 2048}

// greetAgent sets the agent up and waits until it has hardened itself.
func (l *Launcher) greetAgent(b *box) error {
	home, err := b.group.HomeTasks()
	if err != nil {
		return err
	}
	defer linux.CloseAll(home)
	m := wire.InitMsg{
		Version:   version.Version,
		Lifeline:  !b.service,
		Linger:    b.wave.linger(),
		Filter:    l.filter,
		HomeTasks: uint32(len(home)),
		Spawners:  cgroups.SpawnerThreads,
		Sockets:   maxSockets,
	}
	if b.spec.Unpacks {
		m.Unpacks = true
		if m.Filter, err = l.unpacker(); err != nil {
			return fmt.Errorf("compiling seccomp filter: %w", err)
		}
	}
	files := append([]*os.File{b.listener}, home...)
	if g, ok := b.runtime.(*gvisor); ok {
		sandbox, own, err := g.sandbox(b)
		if err != nil {
			return err
		}
		defer linux.CloseAll(own)
		m.Sandbox, m.Filter = sandbox, nil
		files = append(files, own...)
	}
	if err := b.control.Send(wire.TypeInit, 1, m.Marshal(), files...); err != nil {
		return fmt.Errorf("setting up agent: %w", err)
	}
	if err := awaitReady(b.control); errors.Is(err, unix.EPROTONOSUPPORT) {
		return fmt.Errorf("%w: %w", engine.ErrNoLauncher, err)
	} else if err != nil {
		return fmt.Errorf("setting up agent: %w", err)
	}
	b.listener.Close()
	b.listener = nil
	// Not before the agent runs: an execve in progress has copied the filter already.
	if err := emptyDumps(b.pid); err != nil {
		return err
	}
	return b.stillThere()
}

// awaitReady receives the agent's answer to Init. Giving up the create, after giveUpTime,
// closes the connection and so ends the wait.
func awaitReady(control *wire.Conn) error {
	frame, err := control.Receive()
	if err != nil {
		return err
	}
	frame.Close()
	var failed wire.FailedMsg
	switch {
	case frame.Type == wire.TypeReady:
		return nil
	case failed.Unmarshal(frame.Body) == nil:
		return &failed
	}
	return fmt.Errorf("type %d: %w", frame.Type, wire.ErrProtocol)
}

// connect opens another connection to the agent for a client. It does not block on an agent
// that no longer accepts connections: once the agent's queue is full, it returns EAGAIN.
func (b *box) connect() (*os.File, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, os.NewSyscallError("socket", err)
	}
	f := os.NewFile(uintptr(fd), "agent")
	dir, name, err := b.socketAddress()
	if err != nil {
		f.Close()
		return nil, err
	}
	defer dir.Close()
	addr := &unix.SockaddrUnix{Name: name}
	if err := linux.Retry(func() error { return unix.Connect(fd, addr) }); err != nil {
		f.Close()
		return nil, fmt.Errorf("connecting to agent: %w", err)
	}
	return f, nil
}
