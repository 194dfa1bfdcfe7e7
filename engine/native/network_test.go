package native

import (
	"encoding/json"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/boxd/boxd/engine/native/rpc"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

// elsewhere calls f in a network namespace with the addresses 127.0.0.1 and 10.9.9.9.
func elsewhere(t *testing.T, f func() error) {
	t.Helper()
	testutil.RequireRoot(t)
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends in that namespace
		done <- func() error {
			if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return err
			}
			s, err := linux.TCPSocket(false)
			if err != nil {
				return err
			}
			defer s.Close()
			lo, err := unix.NewIfreq("lo")
			if err != nil {
				return err
			}
			lo.SetUint16(unix.IFF_UP)
			if err := unix.IoctlIfreq(int(s.Fd()), unix.SIOCSIFFLAGS, lo); err != nil {
				return err
			}
			if lo, err = unix.NewIfreq("lo:1"); err != nil {
				return err
			}
			return errors.Join(lo.SetInet4Addr([]byte{10, 9, 9, 9}), unix.IoctlIfreq(int(s.Fd()), unix.SIOCSIFADDR, lo), f())
		}()
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

// TestHostileSockets: a client connects to loopback, and to no network of the host, whatever sockets
// its launcher hands it.
func TestHostileSockets(t *testing.T) {
	socket := func(typ int) func() (*os.File, error) {
		return func() (*os.File, error) {
			fd, err := unix.Socket(unix.AF_INET, typ|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
			return os.NewFile(uintptr(fd), "socket"), err
		}
	}
	var server *os.File // of the connected one
	// connect(2) of a socket whose earlier, non-blocking connect(2) has succeeded meanwhile
	// succeeds, whatever its address.
	connected := func() (*os.File, error) {
		l, err := linux.TCPSocket(false)
		if err != nil {
			return nil, err
		}
		server = l
		if err := linux.ListenTCP(l, netip.MustParseAddrPort("10.9.9.9:0"), 8, 4096); err != nil {
			return nil, err
		}
		name, err := unix.Getsockname(int(l.Fd()))
		if err != nil {
			return nil, err
		}
		s, err := linux.TCPSocket(false)
		if err != nil {
			return nil, err
		}
		at := netip.AddrPortFrom(netip.MustParseAddr("10.9.9.9"), uint16(name.(*unix.SockaddrInet4).Port))
		if err := linux.StartConnect(s, at); err != nil && !errors.Is(err, unix.EINPROGRESS) {
			return nil, err
		}
		return s, nil
	}
	for name, c := range map[string]struct {
		make func() (*os.File, error)
		host bool
		says string
	}{
		"of the host":         {socket(unix.SOCK_STREAM), true, "network of the host"},
		"a datagram socket":   {socket(unix.SOCK_DGRAM), false, "not to loopback"},
		"connected elsewhere": {connected, false, "leads to 10.9.9.9"},
	} {
		t.Run(name, func(t *testing.T) {
			var s *os.File
			open := func() (err error) { s, err = c.make(); return err }
			if c.host {
				if err := open(); err != nil {
					t.Fatal(err)
				}
			} else {
				elsewhere(t, open)
			}
			defer s.Close()
			if server != nil {
				defer server.Close()
			}
			l, launchers := newFakeLink(t)
			b := &box{engine: &core{link: l}, id: "b"}
			go func() {
				f := <-launchers
				defer f.conn.Close()
				var m rpc.Sockets
				id := f.receive(rpc.TypeSockets, &m)
				files := make([]*os.File, m.IPv4)
				for i := range files {
					files[i] = s
				}
				text, _ := json.Marshal(rpc.Reply{})
				if err := f.conn.Send(rpc.TypeReply, id, text, files...); err != nil {
					t.Error(err)
				}
				f.conn.Receive() // until the link is closed
			}()
			conn, err := b.Dial(t.Context(), 80)
			if err == nil {
				conn.Close()
			}
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("connected: %v, want %q", err, c.says)
			}
			linux.CloseAll(b.spare)
		})
	}
}

// TestSpareSockets: a box that is dialled many times at once keeps few sockets.
func TestSpareSockets(t *testing.T) {
	var s *os.File
	elsewhere(t, func() (err error) {
		s, err = linux.TCPSocket(false)
		return err
	})
	defer s.Close()
	const dials = 32
	l, launchers := newFakeLink(t)
	b := &box{engine: &core{link: l}, id: "b"}
	go func() {
		f := <-launchers
		defer f.conn.Close()
		var calls []func() error
		for range dials { // all have asked before one is answered
			var m rpc.Sockets
			id := f.receive(rpc.TypeSockets, &m)
			calls = append(calls, func() error {
				text, _ := json.Marshal(rpc.Reply{})
				return f.conn.Send(rpc.TypeReply, id, text, slices.Repeat([]*os.File{s}, m.IPv4)...)
			})
		}
		for _, answer := range calls {
			if err := answer(); err != nil {
				t.Error(err)
			}
		}
		f.conn.Receive() // until the link is closed
	}()
	var wg sync.WaitGroup
	for range dials {
		wg.Go(func() {
			got, err := b.takeSocket(t.Context(), false)
			if err != nil {
				t.Error(err)
				return
			}
			got.Close()
		})
	}
	wg.Wait()
	defer linux.CloseAll(b.spare)
	if len(b.spare) != spareSockets {
		t.Errorf("%d sockets are kept, want %d", len(b.spare), spareSockets)
	}
}
