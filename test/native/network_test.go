package native

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/boxd/boxd/engine"
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
