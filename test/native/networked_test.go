package native

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"golang.org/x/sys/unix"
)

var proxyAddress = netip.MustParseAddrPort("127.0.0.1:3128")

// answering accepts connections of l until the test ends, and answers each line with said + line.
func answering(t testing.TB, l net.Listener, said string) {
	t.Helper()
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				for lines := bufio.NewScanner(c); lines.Scan(); {
					if _, err := io.WriteString(c, said+lines.Text()+"\n"); err != nil {
						return
					}
				}
			}()
		}
	}()
}

const talk = `
import socket, sys
s = socket.create_connection((sys.argv[1], int(sys.argv[2])))
s.sendall(b"hello\n")
print(s.makefile().readline(), end="")
`

// TestListenInBox: the caller serves an address of the box's loopback, which exists in this box only.
func TestListenInBox(t *testing.T) {
	e := start(t)
	a, b := create(t, e, engine.Spec{}), create(t, e, engine.Spec{})
	at := []netip.AddrPort{proxyAddress, netip.MustParseAddrPort("[::1]:3128"), netip.MustParseAddrPort("127.0.0.1:1080")}
	for said, box := range map[string]engine.Box{"a: ": a, "b: ": b} {
		listeners, err := box.(engine.Networked).Listen(t.Context(), at...)
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range listeners {
			if l.Addr().String() != at[i].String() {
				t.Errorf("listener %d is at %v", i, l.Addr())
			}
			answering(t, l, said+strconv.Itoa(i)+" ")
		}
	}
	for said, box := range map[string]engine.Box{"a: ": a, "b: ": b} {
		for i, host := range []string{"127.0.0.1", "::1"} {
			o := run(t, box, python(talk, host, "3128"))
			if want := said + strconv.Itoa(i) + " hello\n"; o.stdout != want {
				t.Errorf("%s: %q, want %q; %s", host, o.stdout, want, tail(o.stderr))
			}
		}
	}
	if c, err := net.Dial("tcp", proxyAddress.String()); err == nil {
		c.Close()
		t.Error("the host reaches the listener of a box")
	}
}

// TestListenRefused: nothing but loopback, nothing twice, and nothing of a box that is gone. After
// each failure the addresses are free.
func TestListenRefused(t *testing.T) {
	e := start(t)
	b := create(t, e, engine.Spec{}).(engine.Networked)
	for _, at := range []string{"0.0.0.0:3128", "[::]:3128", "10.0.0.1:3128", "[::ffff:10.0.0.1]:3128", "[fe80::1%lo]:3128"} {
		if _, err := b.Listen(t.Context(), proxyAddress, netip.MustParseAddrPort(at)); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%s: %v", at, err)
		}
	}
	if _, err := b.Listen(t.Context(), proxyAddress, proxyAddress); !errors.Is(err, unix.EADDRINUSE) && !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("twice: %v", err)
	}
	many := make([]netip.AddrPort, 17)
	for i := range many {
		many[i] = netip.AddrPortFrom(netip.IPv6Loopback(), uint16(5000+i))
	}
	if _, err := b.Listen(t.Context(), many...); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("17 sockets: %v", err)
	}
	listeners, err := b.Listen(t.Context(), append(many[:15], proxyAddress)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range listeners {
		l.Close()
	}
	remove(t, b.(engine.Box))
	if _, err := b.Listen(t.Context(), proxyAddress); err == nil {
		t.Error("a removed box listens")
	}
	if _, err := b.Dial(t.Context(), 80); err == nil {
		t.Error("a removed box answers")
	}
}

const serveLines = `
import socket, sys, threading
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
l = socket.create_server((sys.argv[1], int(sys.argv[2])), family=family)
print("listening", flush=True)
def serve(c):
    for line in c.makefile("rb"): c.sendall(sys.argv[3].encode() + line)
while True: threading.Thread(target=serve, args=(l.accept()[0],), daemon=True).start()
`

func exchange(t testing.TB, c net.Conn) string {
	t.Helper()
	if _, err := io.WriteString(c, "hello\n"); err != nil {
		t.Fatal(err)
	}
	said, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return said
}

// TestDialBox: a connection reaches the port of this box, on both loopback addresses, and the same
// port of the host is never taken for it.
func TestDialBox(t *testing.T) {
	host, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	answering(t, host, "host: ")
	port := host.Addr().(*net.TCPAddr).Port
	b := newBox(t, engine.Spec{})
	box := b.(engine.Networked)
	if _, err := box.Dial(t.Context(), port); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("nothing listens: %v", err)
	}
	for _, p := range []int{0, -1, 65536} {
		if _, err := box.Dial(t.Context(), p); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("port %d: %v", p, err)
		}
	}
	for said, at := range map[string]string{"four: ": "127.0.0.1", "six: ": "::1"} {
		ctx, cancel := context.WithCancel(t.Context())
		c, out := python(serveLines, at, strconv.Itoa(port), said), newScreen()
		c.Stdout = out
		p, err := b.Start(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		out.await(t, "listening")
		for range 6 { // more than there are spare sockets
			conn, err := box.Dial(t.Context(), port)
			if err != nil {
				t.Fatal(err)
			}
			if got := exchange(t, conn); got != said+"hello\n" {
				t.Errorf("%s: %q", at, got)
			}
			if peer := conn.RemoteAddr().(*net.TCPAddr); !peer.IP.IsLoopback() || peer.Port != port {
				t.Errorf("%s: connected to %v", at, peer)
			}
			conn.Close()
		}
		cancel()
		wait(t, p)
	}
}

// TestDialGivesUp: a listener whose backlog is full makes nobody wait longer than the context allows.
func TestDialGivesUp(t *testing.T) {
	b := newBox(t, engine.Spec{})
	c, out := python(`
import socket, time
l = socket.socket(); l.bind(("127.0.0.1", 8000)); l.listen(0)
waiting = []
for _ in range(8):
    s = socket.socket(); s.setblocking(False); s.connect_ex(("127.0.0.1", 8000)); waiting.append(s)
print("full", flush=True)
time.sleep(600)
`), newScreen()
	c.Stdout = out
	begin(t, b, c)
	out.await(t, "full")
	ctx, cancel := context.WithCancelCause(t.Context())
	gone := errors.New("the caller has gone")
	dialled := make(chan error, 1)
	go func() {
		conn, err := b.(engine.Networked).Dial(ctx, 8000)
		if err == nil {
			conn.Close()
		}
		dialled <- err
	}()
	select {
	case err := <-dialled:
		t.Fatalf("did not wait: %v", err)
	default:
		cancel(gone)
	}
	if err := <-dialled; !errors.Is(err, gone) {
		t.Errorf("%v", err)
	}
}

// TestNetworkOutlivesLauncher: listeners and connections belong to the caller, and the next launcher
// opens more.
func TestNetworkOutlivesLauncher(t *testing.T) {
	s, dir := newService(t)
	b := createLive(t, s, engine.Spec{})
	listeners, err := b.(engine.Networked).Listen(t.Context(), proxyAddress)
	if err != nil {
		t.Fatal(err)
	}
	answering(t, listeners[0], "still ")
	killLauncher(t, dir)
	o := run(t, b, python(talk, "127.0.0.1", "3128"))
	if o.stdout != "still hello\n" {
		t.Errorf("%q, %q", o.stdout, tail(o.stderr))
	}
	if _, err := b.(engine.Networked).Dial(t.Context(), 81); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("with the next launcher: %v", err)
	}
	conn, err := b.(engine.Networked).Dial(t.Context(), 3128)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := exchange(t, conn); got != "still hello\n" {
		t.Errorf("%q", got)
	}
}

// BenchmarkDialBox compares connecting to a port of a box, and one byte there and back, with the
// same on the host.
func BenchmarkDialBox(b *testing.B) {
	one := func(b *testing.B, dial func() (net.Conn, error)) {
		for b.Loop() {
			c, err := dial()
			if err != nil {
				b.Fatal(err)
			}
			exchange(b, c)
			c.Close()
		}
	}
	box := newBox(b, engine.Spec{})
	listeners, err := box.(engine.Networked).Listen(b.Context(), proxyAddress)
	if err != nil {
		b.Fatal(err)
	}
	answering(b, listeners[0], "")
	host, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	answering(b, host, "")
	b.Run("host", func(b *testing.B) {
		one(b, func() (net.Conn, error) { return net.Dial("tcp", host.Addr().String()) })
	})
	b.Run("box", func(b *testing.B) {
		one(b, func() (net.Conn, error) { return box.(engine.Networked).Dial(b.Context(), 3128) })
	})
}
