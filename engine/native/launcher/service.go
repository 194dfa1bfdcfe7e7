package launcher

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"time"

	"github.com/boxd/boxd/agent/wire"
	"github.com/boxd/boxd/cgroups"
	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/diskroom"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/boxd/boxd/internal/version"
	"golang.org/x/sys/unix"
)

// service extends a launcher that outlives its clients, and whose boxes outlive it.
type service struct {
	ServiceOptions
	roots    mountRoots // limit what the client can reach of the host, unless it is root
	listener *net.UnixListener
	watcher  *cgroups.Watcher
	events   *events

	mu      sync.Mutex
	current *client // nil without one
	stopped bool
	serving sync.WaitGroup // connections
}

// Service runs a launcher as a service, until a client stops it or it gets SIGTERM. Its
// boxes stay, unless the client asks to remove them.
func Service(o ServiceOptions) error {
	unix.Umask(0o022)
	if err := o.prepare(); err != nil { // does not return if it executes the program again
		return err
	}
	signal.Ignore(unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	quietLibcontainer()
	listener, err := o.listen()
	if err != nil {
		return err
	}
	s := &service{ServiceOptions: o, listener: listener, events: newEvents()}
	s.roots, err = o.roots()
	var l *Launcher
	if err == nil {
		l, err = open(options{stateDir: o.StateDir, dataDir: o.DataDir, runtimes: o.Runtimes, programs: o.programs, pool: o.Pool}, s)
	}
	if err != nil {
		s.refuseAll(err)
		return err
	}
	terminated := make(chan os.Signal, 1)
	signal.Notify(terminated, unix.SIGTERM)
	go func() {
		<-terminated
		s.stop()
	}()
	o.ready()
	served := make(chan struct{})
	go func() { // not on the main thread, where switching goroutines is slow
		defer close(served)
		l.serveClients()
	}()
	<-served
	if err := errors.Join(l.close(), o.unlink()); err != nil {
		// The launcher has ended as requested. An error status would make systemd or the
		// keeper restart it.
		fmt.Fprintf(os.Stderr, "boxd-init: ending the launcher: %v\n", oneline.Error(err))
	}
	return nil
}

// openService opens the storage and adopts the boxes.
func (l *Launcher) openService() error {
	var err error
	if l.generation, err = l.instance.nextGeneration(); err != nil {
		return l.instance.whereFull(fmt.Errorf("counting launchers: %w", err))
	}
	if l.service.watcher, err = cgroups.NewWatcher(l.service.events.add); err != nil {
		return err
	}
	if err := l.openStorage(); err != nil {
		return err
	}
	if err := l.adoptAll(); err != nil {
		return err
	}
	diskroom.KeepSpare(filepath.Join(l.instance.state, rpc.SpareFile), rpc.SpareSize)
	return nil
}

// serveClients answers one client after another until the service is stopped.
func (l *Launcher) serveClients() {
	s := l.service
	ended := make(chan struct{})
	s.serving.Go(func() { l.sendEvents(ended) })
	failing := false
	for {
		sock, err := s.listener.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				break
			}
			if !failing { // logged once, because it may last
				fmt.Fprintf(os.Stderr, "boxd-init: launcher: %v\n", err)
			}
			failing = true
			time.Sleep(100 * time.Millisecond) // a lack of descriptors or memory may pass
			continue
		}
		failing = false
		s.serving.Go(func() { l.welcome(sock) })
	}
	close(ended)
	s.stop()
	s.serving.Wait()
}

// stop ends serveClients. Requests that have been received are still carried out.
func (s *service) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.listener.Close()
	if s.current != nil {
		s.current.conn.Close()
	}
}

// welcome serves a connection if its peer may use the service.
func (l *Launcher) welcome(sock *net.UnixConn) {
	c := &client{conn: wire.NewConn(sock), sock: sock, gone: make(chan struct{})}
	c.conn.RefuseFDs()
	defer c.conn.Close()
	h, err := l.service.takeClient(c)
	if err != nil {
		h.Error = err.Error()
	}
	if herr := sayHello(c.conn, h); err != nil || herr != nil {
		if err == nil {
			l.service.dropClient(c)
		}
		return
	}
	c.greeted.Store(true)
	l.service.events.wake()
	if err := l.serveClient(c); errors.Is(err, wire.ErrProtocol) {
		fmt.Fprintf(os.Stderr, "boxd-init: launcher: %v\n", err)
	}
	l.works.forsake(c.conn)
	l.storage.forsakeCopies(c.conn)
	c.conn.Close()
	c.creates.Wait()
	l.forsakeLayers()
	l.service.dropClient(c)
}

// takeClient makes c the client. It refuses c while another client is connected. If the
// other one has hung up, takeClient waits until its creates have been answered, its copies
// of volumes are given up, and its unfinished layers are being deleted.
func (s *service) takeClient(c *client) (rpc.Hello, error) {
	if err := s.checkPeer(c.sock); err != nil {
		return rpc.Hello{Version: version.Version, Protocol: rpc.Protocol}, err // a stranger learns no more
	}
	h := s.hello()
	for {
		s.mu.Lock()
		before := s.current
		switch {
		case s.stopped:
			s.mu.Unlock()
			return h, errors.New("the launcher is ending")
		case before == nil:
			s.current = c
			s.mu.Unlock()
			return h, nil
		}
		s.mu.Unlock()
		if raw, err := before.sock.SyscallConn(); err == nil && !linux.HungUp(raw) {
			h.Busy = true
			return h, errors.New("the launcher serves another client, which is connected: it serves only one at a time")
		}
		<-before.gone
	}
}

// hello describes the launcher and its options.
func (s *service) hello() rpc.Hello {
	return rpc.Hello{Version: version.Version, Protocol: rpc.Protocol, PID: os.Getpid(), ClientUID: s.ClientUID,
		DataDir: s.DataDir, Pool: s.Pool, MountRoots: s.MountRoots, Workspaces: s.Workspaces, Runtimes: s.Runtimes}
}

// dropClient makes room for the next client.
func (s *service) dropClient(c *client) {
	c.conn.Close()
	c.creates.Wait()
	s.mu.Lock()
	s.current = nil
	s.mu.Unlock()
	close(c.gone)
}

// undelivered removes a box whose client could not be told of it.
func (l *Launcher) undelivered(typ byte, reply any) {
	created, ok := reply.(rpc.Created)
	if l.service == nil || typ != rpc.TypeCreate || !ok {
		return
	}
	if err := l.remove(created.ID); err != nil {
		fmt.Fprintf(os.Stderr, "boxd-init: removing a box whose client is gone: %v\n", oneline.Error(err))
	}
}

// refuseTime is how long a launcher that cannot serve reports the reason before it exits.
const refuseTime = 5 * time.Second

// refuseAll tells clients that connect within refuseTime why there is no service.
func (s *service) refuseAll(reason error) {
	_ = s.listener.SetDeadline(time.Now().Add(refuseTime))
	for {
		sock, err := s.listener.AcceptUnix()
		if err != nil {
			return
		}
		h := s.hello()
		h.Error = oneline.Error(reason)
		conn := wire.NewConn(sock)
		conn.RefuseFDs()
		if s.checkPeer(sock) == nil {
			_ = sayHello(conn, h)
		}
		conn.Close()
	}
}
