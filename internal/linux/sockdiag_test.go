package linux

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func listenTCP(t testing.TB, network, addr string) *net.TCPListener {
	t.Helper()
	l, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

func dialTCP(t testing.TB, addr string) *net.TCPConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c.(*net.TCPConn)
}

func accept(t testing.TB, l *net.TCPListener) *net.TCPConn {
	t.Helper()
	c, err := l.AcceptTCP()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// listenMapped listens on an IPv4 address with an IPv6 socket.
func listenMapped(t *testing.T) *net.TCPListener {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "socket")
	defer f.Close()
	at := &unix.SockaddrInet6{Addr: [16]byte{10: 0xff, 11: 0xff, 12: 127, 15: 1}}
	err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_V6ONLY, 0), unix.Bind(fd, at), unix.Listen(fd, 8))
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.FileListener(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.(*net.TCPListener)
}

func TestTCPClientUID(t *testing.T) {
	for name, l := range map[string]*net.TCPListener{
		"IPv4": listenTCP(t, "tcp4", "127.0.0.1:0"), "IPv6": listenTCP(t, "tcp6", "[::1]:0"), "IPv4 mapped": listenMapped(t),
	} {
		t.Run(name, func(t *testing.T) {
			if err := CanNameTCPClients(l); err != nil {
				t.Fatal(err)
			}
			dialTCP(t, l.Addr().String())
			if uid, err := TCPClientUID(accept(t, l)); err != nil || uid != os.Getuid() {
				t.Errorf("got user %d, %v; want %d", uid, err, os.Getuid())
			}
			l.Close()
			if err := CanNameTCPClients(l); !errors.Is(err, unix.ENOENT) {
				t.Errorf("a closed listener: %v", err)
			}
		})
	}
}

// A client that has closed its end must not count as root, whatever it has sent before.
func TestTCPClientUIDGone(t *testing.T) {
	for name, end := range map[string]func(c *net.TCPConn) error{
		"closed":      (*net.TCPConn).Close,
		"half closed": (*net.TCPConn).CloseWrite,
		"reset":       func(c *net.TCPConn) error { return errors.Join(c.SetLinger(0), c.Close()) },
	} {
		t.Run(name, func(t *testing.T) {
			for _, sent := range []string{"", "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"} {
				l := listenTCP(t, "tcp", "127.0.0.1:0")
				c := dialTCP(t, l.Addr().String())
				if _, err := c.Write([]byte(sent)); err != nil {
					t.Fatal(err)
				}
				if err := end(c); err != nil {
					t.Fatal(err)
				}
				if uid, err := TCPClientUID(accept(t, l)); !errors.Is(err, ErrClientGone) {
					t.Errorf("after %q: user %d, %v; want ErrClientGone", sent, uid, err)
				}
			}
		})
	}
	t.Run("closed by the server, too", func(t *testing.T) {
		l := listenTCP(t, "tcp", "127.0.0.1:0")
		dialTCP(t, l.Addr().String()).Close()
		server := accept(t, l)
		server.CloseWrite() // TIME_WAIT at the client
		if uid, err := TCPClientUID(server); !errors.Is(err, ErrClientGone) {
			t.Errorf("user %d, %v; want ErrClientGone", uid, err)
		}
	})
}

// A client sends a request and resets the connection; before it is accepted, another
// user connects from the same port. The request, which can still be read, is not the
// other user's.
func TestTCPClientUIDOfPortTakenOver(t *testing.T) {
	l := listenTCP(t, "tcp", "127.0.0.1:0")
	for {
		first := dialTCP(t, l.Addr().String())
		from := first.LocalAddr().(*net.TCPAddr)
		if _, err := first.Write([]byte("request")); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(first.SetLinger(0), first.Close()); err != nil {
			t.Fatal(err)
		}
		second, err := net.DialTCP("tcp", from, l.Addr().(*net.TCPAddr))
		if err == nil {
			defer second.Close()
			break
		}
		if !errors.Is(err, syscall.EADDRINUSE) { // another process of this host has been given the port
			t.Fatal(err)
		}
		accept(t, l).Close()
	}
	old, current := accept(t, l), accept(t, l)
	if old.RemoteAddr().String() != current.RemoteAddr().String() {
		t.Fatalf("the connections are from %s and %s: want one port", old.RemoteAddr(), current.RemoteAddr())
	}
	if uid, err := TCPClientUID(old); !errors.Is(err, ErrClientGone) {
		b := make([]byte, 16)
		n, _ := old.Read(b)
		t.Errorf("user %d, %v; want ErrClientGone: it said %q", uid, err, b[:n])
	}
	if _, err := TCPClientUID(current); err != nil {
		t.Error(err)
	}
}

func TestParseDiagAnswer(t *testing.T) {
	for _, b := range [][]byte{nil, make([]byte, 19), make([]byte, 20), diagRequest(loopbackPort, loopbackPort)[:60]} {
		if s, err := parseDiagAnswer(b); err == nil {
			t.Errorf("%d bytes: %+v", len(b), s)
		}
	}
}

var loopbackPort = (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}).AddrPort()

func BenchmarkTCPClientUID(b *testing.B) {
	for _, others := range []int{0, 2000} {
		b.Run(fmt.Sprintf("%d other connections", others), func(b *testing.B) {
			l := listenTCP(b, "tcp", "127.0.0.1:0")
			for range others {
				dialTCP(b, l.Addr().String())
				accept(b, l)
			}
			dialTCP(b, l.Addr().String())
			c := accept(b, l)
			for b.Loop() {
				if _, err := TCPClientUID(c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
