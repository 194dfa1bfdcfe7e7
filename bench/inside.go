package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/boxd/boxd/api/apitypes"
	"golang.org/x/sys/unix"
)

// inside is a thread in the network namespace of a box, or of this process. It makes sockets,
// which stay there and are used by any thread. So the benchmark is a client, or a server, in a
// box without a start of a program there, and compares with itself outside.
type inside struct{ work chan func() }

// enter starts a thread in the network namespace of process pid.
func enter(pid int) (*inside, error) {
	p := &inside{work: make(chan func())}
	ready := make(chan error)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", pid))
		if err == nil {
			err = os.NewSyscallError("setns", unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET))
			ns.Close()
		}
		ready <- err
		if err != nil {
			return
		}
		for f := range p.work {
			f()
		}
	}()
	return p, <-ready
}

func (p *inside) leave() { close(p.work) }

// do calls f in the thread.
func (p *inside) do(f func()) {
	done := make(chan struct{})
	p.work <- func() { defer close(done); f() }
	<-done
}

// dial connects to a literal address; of those, package net makes the socket in the caller's
// thread.
func (p *inside) dial(address string) (c *net.TCPConn, err error) {
	p.do(func() {
		var any net.Conn
		if any, err = net.Dial("tcp4", address); err == nil {
			c = any.(*net.TCPConn)
		}
	})
	return c, err
}

func (p *inside) listen(address string) (l net.Listener, err error) {
	var c net.ListenConfig
	c.SetMultipathTCP(false) // few servers have it
	p.do(func() { l, err = c.Listen(context.Background(), "tcp4", address) })
	return l, err
}

// enterSession starts a thread in the network namespace of a session's box.
func (s *served) enterSession(ctx context.Context, session string) (*inside, error) {
	// The mark tells the process from all others of the host.
	mark := fmt.Sprintf("%d.%d", 100_000+os.Getpid(), len(session))
	if _, err := s.client.Start(ctx, session, apitypes.ProcessRequest{ID: "inside", Argv: []string{"sleep", mark}}); err != nil {
		return nil, err
	}
	defer s.client.RemoveProcess(ctx, session, "inside")
	defer s.client.Stop(ctx, session, "inside", apitypes.StopRequest{})
	for ctx.Err() == nil { // until it is executed
		names, _ := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, name := range names {
			var pid int
			if b, _ := os.ReadFile(name); strings.HasPrefix(string(b), "sleep\x00"+mark) {
				if _, err := fmt.Sscanf(name, "/proc/%d/", &pid); err == nil {
					return enter(pid)
				}
			}
		}
	}
	return nil, errors.Join(ctx.Err(), errors.New("the box's process is not found"))
}
