package conformance

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/boxtest"
	"golang.org/x/sys/unix"
)

const tryConnect = `
import socket, sys
for host in sys.argv[2:]:
    s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    s.settimeout(5)
    try: s.connect((host, int(sys.argv[1]))); print(host, "REACHED")
    except OSError as e: print(host, "refused")
`

// loopback: lo is up with both addresses, and there is nothing else.
func (e *suite) loopback(t testing.TB) {
	b := e.create(t, engine.Spec{})
	o := boxtest.Run(t, b, boxtest.Python(`
import socket, threading
print([name for _, name in socket.if_nameindex()])
for family, host in (socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "127.9.9.9"), (socket.AF_INET6, "::1"), (None, "localhost"):
    l = socket.create_server((host if family else "127.0.0.1", 0), family=family or socket.AF_INET)
    threading.Thread(target=lambda: l.accept()[0].sendall(host.encode())).start()
    print(socket.create_connection((host, l.getsockname()[1])).recv(100).decode())
print(len(open("/proc/net/route").readlines()), socket.gethostbyname("localhost"), socket.gethostname())
`))
	boxtest.Want(t, o, engine.Exited, 0)
	if o.Stdout != "['lo']\n127.0.0.1\n127.9.9.9\n::1\nlocalhost\n1 127.0.0.1 box\n" {
		t.Errorf("%q, %q", o.Stdout, boxtest.Tail(o.Stderr))
	}
}

// samePort: boxes do not share a network, neither with one another nor with
// the host.
func (e *suite) samePort(t testing.TB) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	const serve = `
import socket, sys
l = socket.create_server(("", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
print("listening", flush=True)
while True: l.accept()[0].sendall(sys.argv[2].encode())
`
	var boxes []engine.Box
	for i := range 2 {
		b := e.create(t, engine.Spec{})
		out := boxtest.NewScreen()
		c := boxtest.Python(serve, port, fmt.Sprint("box ", i))
		c.Stdout = out
		boxtest.Begin(t, b, c)
		out.Await(t, "listening")
		boxes = append(boxes, b)
	}
	for i, b := range boxes {
		o := boxtest.Run(t, b, boxtest.Python("import socket, sys\nfor h in '127.0.0.1', '::1': print(socket.create_connection((h, int(sys.argv[1]))).recv(100).decode())", port))
		if o.Stdout != fmt.Sprintf("box %d\nbox %[1]d\n", i) {
			t.Errorf("box %d: %q, %q", i, o.Stdout, boxtest.Tail(o.Stderr))
		}
	}
}

// hostUnreachable: not by any address that the host has, nor by one that
// clouds answer on.
func (e *suite) hostUnreachable(t testing.TB) {
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	hosts := []string{fmt.Sprint(l.Addr().(*net.TCPAddr).Port), "127.0.0.1", "::1", "0.0.0.0", "169.254.169.254"}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		if ip, ok := a.(*net.IPNet); ok && !ip.IP.IsLinkLocalUnicast() {
			hosts = append(hosts, ip.IP.String())
		}
	}
	b := e.create(t, engine.Spec{})
	o := boxtest.Run(t, b, boxtest.Python(tryConnect, hosts...))
	if strings.Contains(o.Stdout, "REACHED") || strings.Count(o.Stdout, "refused") != len(hosts)-1 {
		t.Errorf("%q, %q", o.Stdout, boxtest.Tail(o.Stderr))
	}
}

// networkBounds: what a socket can make the kernel hold without a charge is
// bounded by the settings of the box's network namespace.
func (e *suite) networkBounds(t testing.TB) {
	b := e.create(t, engine.Spec{})
	o := boxtest.Run(t, b, boxtest.Python(`
import errno, os, socket, struct
def refusal(call, *args):
    try: call(*args)
    except OSError as e: return errno.errorcode[e.errno]
    return "works"

print("ping", refusal(socket.socket, socket.AF_INET, socket.SOCK_DGRAM, socket.IPPROTO_ICMP))

# Clients of a listener that accepts nobody. On loopback a connection is there, or
# not, when connect returns.
listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
clients = [socket.socket() for _ in range(200)]
connected = 0
for c in clients:
    c.setblocking(False)
    c.connect_ex(listener.getsockname())
    connected += refusal(c.getpeername) == "works"
print("waiting connections", connected)

s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
join = lambda i: s.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, struct.pack("4s4s", socket.inet_aton("239.0.0.%d" % i), socket.inet_aton("127.0.0.1")))
print("groups", [refusal(join, i) for i in range(1, 6)])

# A time stamp asked for by a control message alone.
if os.path.exists("/proc/sys/net/core/tstamp_allow_data"):
    s.sendmsg([b"x" * 1000], [(socket.SOL_SOCKET, 37, struct.pack("I", 2))], 0, ("127.0.0.1", 9))
    print("copy of what was sent", refusal(s.recvmsg, 2000, 1000, socket.MSG_ERRQUEUE | socket.MSG_DONTWAIT))
`))
	boxtest.Want(t, o, engine.Exited, 0)
	wanted := "ping EACCES\nwaiting connections 129\ngroups ['works', 'works', 'works', 'works', 'ENOBUFS']\n"
	if got := strings.TrimSuffix(o.Stdout, "copy of what was sent EAGAIN\n"); got != wanted {
		t.Errorf("%q, %q", o.Stdout, boxtest.Tail(o.Stderr))
	}
}

// lateReader: what a program sent before it closed its socket waits for a peer that begins to read
// seconds later, as on a host.
func (e *suite) lateReader(t testing.TB) {
	b := e.create(t, engine.Spec{})
	o := boxtest.Run(t, b, boxtest.Python(`
import os, socket, time
listener = socket.create_server(("127.0.0.1", 0))
if os.fork() == 0:
    client = socket.create_connection(listener.getsockname())
    client.sendall(b"x" * (1 << 20))
    os._exit(0)
peer, _ = listener.accept()
time.sleep(3)
received = 0
while data := peer.recv(1 << 16): received += len(data)
print(received)
`))
	boxtest.Want(t, o, engine.Exited, 0)
	if o.Stdout != "1048576\n" {
		t.Errorf("%q of 1048576 bytes, %q", o.Stdout, boxtest.Tail(o.Stderr))
	}
}

// listenInBox: the caller serves an address of the box's loopback, which exists in this box only.
func (e *suite) listenInBox(t testing.TB) {
	a, b := e.create(t, engine.Spec{}), e.create(t, engine.Spec{})
	at := []netip.AddrPort{boxtest.ProxyAddress, netip.MustParseAddrPort("[::1]:3128"), netip.MustParseAddrPort("127.0.0.1:1080")}
	for said, box := range map[string]engine.Box{"a: ": a, "b: ": b} {
		listeners, err := box.(engine.Networked).Listen(t.Context(), at...)
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range listeners {
			if l.Addr().String() != at[i].String() {
				t.Errorf("listener %d is at %v", i, l.Addr())
			}
			boxtest.Answering(t, l, said+strconv.Itoa(i)+" ")
		}
	}
	for said, box := range map[string]engine.Box{"a: ": a, "b: ": b} {
		for i, host := range []string{"127.0.0.1", "::1"} {
			o := boxtest.Run(t, box, boxtest.Python(boxtest.Talk, host, "3128"))
			if want := said + strconv.Itoa(i) + " hello\n"; o.Stdout != want {
				t.Errorf("%s: %q, want %q; %s", host, o.Stdout, want, boxtest.Tail(o.Stderr))
			}
		}
	}
	if c, err := net.Dial("tcp", boxtest.ProxyAddress.String()); err == nil {
		c.Close()
		t.Error("the host reaches the listener of a box")
	}
}

// listenRefused: nothing but loopback, nothing twice, and nothing of a box that is gone. After
// each failure the addresses are free.
func (e *suite) listenRefused(t testing.TB) {
	b := e.create(t, engine.Spec{}).(engine.Networked)
	for _, at := range []string{"0.0.0.0:3128", "[::]:3128", "10.0.0.1:3128", "[::ffff:10.0.0.1]:3128", "[fe80::1%lo]:3128"} {
		if _, err := b.Listen(t.Context(), boxtest.ProxyAddress, netip.MustParseAddrPort(at)); !errors.Is(err, engine.ErrInvalid) {
			t.Errorf("%s: %v", at, err)
		}
	}
	if _, err := b.Listen(t.Context(), boxtest.ProxyAddress, boxtest.ProxyAddress); !errors.Is(err, unix.EADDRINUSE) && !strings.Contains(err.Error(), "address already in use") {
		t.Errorf("twice: %v", err)
	}
	many := make([]netip.AddrPort, 17)
	for i := range many {
		many[i] = netip.AddrPortFrom(netip.IPv6Loopback(), uint16(5000+i))
	}
	if _, err := b.Listen(t.Context(), many...); !errors.Is(err, engine.ErrInvalid) {
		t.Errorf("17 sockets: %v", err)
	}
	listeners, err := b.Listen(t.Context(), append(many[:15], boxtest.ProxyAddress)...)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range listeners {
		l.Close()
	}
	boxtest.Remove(t, b.(engine.Box))
	if _, err := b.Listen(t.Context(), boxtest.ProxyAddress); err == nil {
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

// dialBox: a connection reaches the port of this box, on both loopback addresses, and the same
// port of the host is never taken for it.
func (e *suite) dialBox(t testing.TB) {
	host, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	boxtest.Answering(t, host, "host: ")
	port := host.Addr().(*net.TCPAddr).Port
	b := e.create(t, engine.Spec{})
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
		c, out := boxtest.Python(serveLines, at, strconv.Itoa(port), said), boxtest.NewScreen()
		c.Stdout = out
		p, err := b.Start(ctx, c)
		if err != nil {
			t.Fatal(err)
		}
		out.Await(t, "listening")
		for range 6 { // more than there are spare sockets
			conn, err := box.Dial(t.Context(), port)
			if err != nil {
				t.Fatal(err)
			}
			if got := boxtest.Exchange(t, conn); got != said+"hello\n" {
				t.Errorf("%s: %q", at, got)
			}
			if peer := conn.RemoteAddr().(*net.TCPAddr); !peer.IP.IsLoopback() || peer.Port != port {
				t.Errorf("%s: connected to %v", at, peer)
			}
			conn.Close()
		}
		cancel()
		boxtest.Wait(t, p)
	}
}

// dialGivesUp: a listener whose backlog is full makes nobody wait longer than the context allows.
func (e *suite) dialGivesUp(t testing.TB) {
	b := e.create(t, engine.Spec{})
	c, out := boxtest.Python(`
import socket, time
l = socket.socket(); l.bind(("127.0.0.1", 8000)); l.listen(0)
waiting = []
for _ in range(8):
    s = socket.socket(); s.setblocking(False); s.connect_ex(("127.0.0.1", 8000)); waiting.append(s)
print("full", flush=True)
time.sleep(600)
`), boxtest.NewScreen()
	c.Stdout = out
	boxtest.Begin(t, b, c)
	out.Await(t, "full")
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
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

// networkOutlivesLauncher: listeners and connections belong to the caller, and the next launcher
// opens more.
func (e *suite) networkOutlivesLauncher(t testing.TB) {
	s := e.private(t)
	b := s.create(t, engine.Spec{})
	listeners, err := b.(engine.Networked).Listen(t.Context(), boxtest.ProxyAddress)
	if err != nil {
		t.Fatal(err)
	}
	boxtest.Answering(t, listeners[0], "still ")
	s.KillLauncher(t)
	o := boxtest.Run(t, b, boxtest.Python(boxtest.Talk, "127.0.0.1", "3128"))
	if o.Stdout != "still hello\n" {
		t.Errorf("%q, %q", o.Stdout, boxtest.Tail(o.Stderr))
	}
	if _, err := b.(engine.Networked).Dial(t.Context(), 81); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("with the next launcher: %v", err)
	}
	conn, err := b.(engine.Networked).Dial(t.Context(), 3128)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if got := boxtest.Exchange(t, conn); got != "still hello\n" {
		t.Errorf("%q", got)
	}
}
