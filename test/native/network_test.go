package native

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/testutil"
)

const tryConnect = `
import socket, sys
for host in sys.argv[2:]:
    s = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    s.settimeout(5)
    try: s.connect((host, int(sys.argv[1]))); print(host, "REACHED")
    except OSError as e: print(host, "refused")
`

// TestLoopback: lo is up with both addresses, and there is nothing else.
func TestLoopback(t *testing.T) {
	b := newBox(t, engine.Spec{})
	o := run(t, b, python(`
import socket, threading
print([name for _, name in socket.if_nameindex()])
for family, host in (socket.AF_INET, "127.0.0.1"), (socket.AF_INET, "127.9.9.9"), (socket.AF_INET6, "::1"), (None, "localhost"):
    l = socket.create_server((host if family else "127.0.0.1", 0), family=family or socket.AF_INET)
    threading.Thread(target=lambda: l.accept()[0].sendall(host.encode())).start()
    print(socket.create_connection((host, l.getsockname()[1])).recv(100).decode())
print(len(open("/proc/net/route").readlines()), socket.gethostbyname("localhost"), socket.gethostname())
`))
	want(t, o, engine.Exited, 0)
	if o.stdout != "['lo']\n127.0.0.1\n127.9.9.9\n::1\nlocalhost\n1 127.0.0.1 box\n" {
		t.Errorf("%q, %q", o.stdout, tail(o.stderr))
	}
}

// TestSamePort: boxes do not share a network, neither with one another nor with
// the host.
func TestSamePort(t *testing.T) {
	testutil.Long(t)
	l, err := net.Listen("tcp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	port := fmt.Sprint(l.Addr().(*net.TCPAddr).Port)
	e := start(t)
	const serve = `
import socket, sys
l = socket.create_server(("", int(sys.argv[1])), family=socket.AF_INET6, dualstack_ipv6=True)
print("listening", flush=True)
while True: l.accept()[0].sendall(sys.argv[2].encode())
`
	var boxes []engine.Box
	for i := range 2 {
		b := create(t, e, engine.Spec{})
		out := newScreen()
		c := python(serve, port, fmt.Sprint("box ", i))
		c.Stdout = out
		begin(t, b, c)
		out.await(t, "listening")
		boxes = append(boxes, b)
	}
	for i, b := range boxes {
		o := run(t, b, python("import socket, sys\nfor h in '127.0.0.1', '::1': print(socket.create_connection((h, int(sys.argv[1]))).recv(100).decode())", port))
		if o.stdout != fmt.Sprintf("box %d\nbox %[1]d\n", i) {
			t.Errorf("box %d: %q, %q", i, o.stdout, tail(o.stderr))
		}
	}
}

// TestHostUnreachable: not by any address that the host has, nor by one that
// clouds answer on.
func TestHostUnreachable(t *testing.T) {
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
	b := newBox(t, engine.Spec{})
	o := run(t, b, python(tryConnect, hosts...))
	if strings.Contains(o.stdout, "REACHED") || strings.Count(o.stdout, "refused") != len(hosts)-1 {
		t.Errorf("%q, %q", o.stdout, tail(o.stderr))
	}
}

// TestNetworkBounds: what a socket can make the kernel hold without a charge is
// bounded by the settings of the box's network namespace.
func TestNetworkBounds(t *testing.T) {
	b := newBox(t, engine.Spec{})
	o := run(t, b, python(`
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
	want(t, o, engine.Exited, 0)
	wanted := "ping EACCES\nwaiting connections 129\ngroups ['works', 'works', 'works', 'works', 'ENOBUFS']\n"
	if got := strings.TrimSuffix(o.stdout, "copy of what was sent EAGAIN\n"); got != wanted {
		t.Errorf("%q, %q", o.stdout, tail(o.stderr))
	}
}
