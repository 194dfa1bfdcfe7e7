package launcher

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
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

// service is what a launcher has besides when it outlives its clients, and its boxes
// outlive it.
type service struct {
	stateDir string
	uid, gid int    // of the client, besides root
	unit     string // systemd's, of the client; empty: root names its process
	dataDir  string // for volumes; empty: none
	options  ServiceOptions
	roots    mountRoots // what the client can reach of the host, unless it is root
	listener *net.UnixListener
	watcher  *cgroups.Watcher
	events   *events

	mu      sync.Mutex
	current *client // nil without one
	stopped bool
	serving sync.WaitGroup // connections
}

// client is one connection.
type client struct {
	conn    *wire.Conn
	sock    *net.UnixConn
	greeted atomic.Bool    // nothing is said before Hello
	creates sync.WaitGroup // boxes in the making
	gone    chan struct{}  // closed when nothing more comes of it
}

// Service runs a launcher as a service, until it is told to stop or gets SIGTERM. Its
// boxes stay, unless it is told to remove them.
func Service(o ServiceOptions) error {
	unix.Umask(0o022)
	if err := o.prepare(); err != nil { // does not return where it executes this anew
		return err
	}
	signal.Ignore(unix.SIGINT, unix.SIGHUP, unix.SIGQUIT, unix.SIGPIPE)
	quietLibcontainer()
	listener, err := o.listen()
	if err != nil {
		return err
	}
	s := &service{stateDir: o.StateDir, unit: o.ClientUnit, uid: o.ClientUID, gid: o.ClientGID, dataDir: o.DataDir, options: o, listener: listener, events: newEvents()}
	s.roots, err = o.roots()
	var l *Launcher
	if err == nil {
		l, err = open(o.StateDir, s)
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
	go func() { // not on the main thread, to which a change of goroutines is slow
		defer close(served)
		l.serveClients()
	}()
	<-served
	if err := errors.Join(l.close(), o.unlink()); err != nil {
		// It was asked to end, and has: nobody shall start it again for this.
		fmt.Fprintf(os.Stderr, "boxd-init: ending the launcher: %v\n", oneline.Error(err))
	}
	return nil
}

// openService finds the boxes.
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

// closeService lets go of the boxes.
func (l *Launcher) closeService() error {
	err := l.storage.close()
	if l.service.watcher == nil {
		return err
	}
	return errors.Join(err, l.service.watcher.Close())
}

// serveClients answers one client after another until the service is stopped.
func (l *Launcher) serveClients() {
	s := l.service
	ended := make(chan struct{})
	s.serving.Go(func() { l.tellEvents(ended) })
	failing := false
	for {
		sock, err := s.listener.AcceptUnix()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				break
			}
			if !failing { // once: it may be long
				fmt.Fprintf(os.Stderr, "boxd-init: launcher: %v\n", err)
			}
			failing = true
			time.Sleep(100 * time.Millisecond) // of descriptors or memory there may be some later
			continue
		}
		failing = false
		s.serving.Go(func() { l.welcome(sock) })
	}
	close(ended)
	s.stop()
	s.serving.Wait()
}

// stop ends serveClients. What was asked for already is carried out.
func (s *service) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stopped = true
	s.listener.Close()
	if s.current != nil {
		s.current.conn.Close()
	}
}

// welcome serves a connection, if it may have the service.
func (l *Launcher) welcome(sock *net.UnixConn) {
	c := &client{conn: wire.NewConn(sock), sock: sock, gone: make(chan struct{})}
	c.conn.RefuseFDs()
	defer c.conn.Close()
	h, err := l.service.take(c)
	if err != nil {
		h.Error = err.Error()
	}
	if herr := sayHello(c.conn, h); err != nil || herr != nil {
		if err == nil {
			l.service.leave(c)
		}
		return
	}
	c.greeted.Store(true)
	l.service.events.wake()
	l.serveClient(c)
	l.works.forsake(c.conn)
	l.service.leave(c)
}

// take makes c the client. While another one lives there is no second; one that is
// gone is waited for until nothing more comes of what it asked for.
func (s *service) take(c *client) (rpc.Hello, error) {
	if err := s.checkPeer(c.sock); err != nil {
		return rpc.Hello{Version: version.Version, Protocol: rpc.Protocol}, err // and nothing else
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
		if !hungUp(before.sock) {
			h.Busy = true
			return h, errors.New("the launcher serves another client, which is connected: there can be one at a time")
		}
		<-before.gone
	}
}

// hello says who serves, and how it was started.
func (s *service) hello() rpc.Hello {
	return rpc.Hello{Version: version.Version, Protocol: rpc.Protocol, PID: os.Getpid(), ClientUID: s.uid,
		DataDir: s.dataDir, MountRoots: s.options.MountRoots, Workspaces: s.options.Workspaces}
}

// leave makes room for the next client.
func (s *service) leave(c *client) {
	c.conn.Close()
	c.creates.Wait()
	s.mu.Lock()
	s.current = nil
	s.mu.Unlock()
	close(c.gone)
}

// hungUp says whether the other end is closed.
func hungUp(sock *net.UnixConn) bool {
	raw, err := sock.SyscallConn()
	return err != nil || linux.HungUp(raw)
}

// serveClient answers requests until the client goes away.
func (l *Launcher) serveClient(c *client) {
	for {
		frame, err := c.conn.Receive()
		if err != nil {
			if errors.Is(err, wire.ErrProtocol) {
				fmt.Fprintf(os.Stderr, "boxd-init: launcher: %v\n", err)
			}
			return
		}
		cost := requestCost + len(frame.Body)
		l.budget.take(cost)
		if frame.Type == rpc.TypeCreate {
			c.creates.Add(1)
		}
		w := l.works.request(c.conn, frame)
		l.requests.Go(func() {
			defer l.budget.give(cost)
			l.answer(w, frame)
			switch frame.Type {
			case rpc.TypeCreate:
				c.creates.Done()
			case rpc.TypeStop:
				_ = os.Remove(filepath.Join(l.service.stateDir, rpc.ClientFile)) // the next one is named anew
				l.service.stop()
			}
		})
	}
}

// undelivered takes back what a client has asked for and will not hear of.
func (l *Launcher) undelivered(typ byte, reply any) {
	created, ok := reply.(rpc.Created)
	if l.service == nil || typ != rpc.TypeCreate || !ok {
		return
	}
	body, err := json.Marshal(rpc.Box{ID: created.ID})
	if err := errors.Join(err, l.handleRemove(body)); err != nil {
		fmt.Fprintf(os.Stderr, "boxd-init: removing a box that nobody waits for: %v\n", oneline.Error(err))
	}
}

// refuseTime is how long a launcher that cannot serve says so before it ends.
const refuseTime = 5 * time.Second

// refuseAll tells whoever connects within a moment why there is no service.
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
