package netns

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/internal/testutil"
)

func TestMain(m *testing.M) { testutil.Main(m) }

func newNS(t testing.TB) *os.File {
	t.Helper()
	testutil.RequireRoot(t)
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	return ns
}

// within runs fn in ns and fails the test with its error. Sockets that fn makes
// belong to ns wherever they are used later.
func within(t testing.TB, ns *os.File, fn func() error) {
	t.Helper()
	if err := in(ns, fn); err != nil {
		t.Fatal(err)
	}
}

// listen listens on address in ns until the test ends.
func listen(t testing.TB, ns *os.File, network, address string) net.Addr {
	t.Helper()
	var l net.Listener
	within(t, ns, func() (err error) {
		l, err = net.Listen(network, address)
		return err
	})
	t.Cleanup(func() { l.Close() })
	return l.Addr()
}

// dial connects to address from ns, with a plain connect: net.Dial may do so on
// another thread, which is in another namespace.
func dial(ns *os.File, address string) error {
	addr, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		return err
	}
	return in(ns, func() error {
		family, sa := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Port: addr.Port, Addr: [16]byte(addr.IP.To16())})
		if v4 := addr.IP.To4(); v4 != nil {
			family, sa = unix.AF_INET, &unix.SockaddrInet4{Port: addr.Port, Addr: [4]byte(v4)}
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return linux.Retry(func() error { return unix.Connect(fd, sa) })
	})
}

func requireIPv6(t testing.TB) {
	t.Helper()
	_, err := os.Stat("/proc/sys/net/ipv6")
	testutil.RequireFeature(t, "IPv6", err)
}

func TestSamePortInTwoNamespaces(t *testing.T) {
	a, b := newNS(t), newNS(t)
	// Port 80 needs no capability either, see TestUnprivilegedPort.
	for _, ns := range []*os.File{a, b} {
		listen(t, ns, "tcp4", "127.0.0.1:80")
	}
	for _, ns := range []*os.File{a, b} {
		if err := dial(ns, "127.0.0.1:80"); err != nil {
			t.Error(err)
		}
	}
}

func TestIPv6Loopback(t *testing.T) {
	requireIPv6(t)
	a, b := newNS(t), newNS(t)
	listen(t, a, "tcp6", "[::1]:8080")
	if err := dial(a, "[::1]:8080"); err != nil {
		t.Errorf("own ::1: %v", err)
	}
	if err := dial(b, "[::1]:8080"); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("::1 of another box: %v, want ECONNREFUSED", err)
	}
}

func TestHostUnreachable(t *testing.T) {
	ns := newNS(t)
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for _, c := range []struct {
		address string
		want    error
	}{
		{l.Addr().String(), unix.ECONNREFUSED}, // the host's loopback
		{"169.254.169.254:80", unix.ENETUNREACH},
		{"192.0.2.1:80", unix.ENETUNREACH},
		{"[2001:db8::1]:80", unix.ENETUNREACH},
	} {
		err := dial(ns, c.address)
		if strings.HasPrefix(c.address, "[") && errors.Is(err, unix.EAFNOSUPPORT) {
			continue // no IPv6 on this host
		}
		if !errors.Is(err, c.want) {
			t.Errorf("connecting to %s: %v, want %v", c.address, err, c.want)
		}
	}
}

// TestUnprivilegedPort is a thread without capabilities that listens on port 80
// and opens a ping socket.
func TestUnprivilegedPort(t *testing.T) {
	const base = 0x6ffd0000
	within(t, newNS(t), func() error {
		// Raw calls change this thread only; it is thrown away afterwards.
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			if _, _, errno := unix.RawSyscall(call, base, base, base); errno != 0 {
				return errno
			}
		}
		for _, s := range []struct{ kind, proto, port int }{
			{unix.SOCK_STREAM, 0, 80},
			{unix.SOCK_DGRAM, unix.IPPROTO_ICMP, 0},
		} {
			fd, err := unix.Socket(unix.AF_INET, s.kind|unix.SOCK_CLOEXEC, s.proto)
			if err != nil {
				return os.NewSyscallError("socket", err)
			}
			defer unix.Close(fd)
			if err := unix.Bind(fd, &unix.SockaddrInet4{Port: s.port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
				return os.NewSyscallError("bind", err)
			}
		}
		return nil
	})
}

func TestLoopbackByPidfd(t *testing.T) {
	testutil.RequireRoot(t)
	cmd := exec.Command("cat") // waits for the end of its input
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer cmd.Wait()
	defer stdin.Close()
	pidfd, err := linux.PidfdOpen(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	defer pidfd.Close()
	if err := Verify(pidfd); err == nil || !strings.Contains(err.Error(), `"lo" is down`) {
		t.Errorf("before: %v, want that lo is down", err)
	}
	if err := Loopback(pidfd); err != nil {
		t.Fatal(err)
	}
	if err := Verify(pidfd); err != nil {
		t.Error(err)
	}
}

func TestVerify(t *testing.T) {
	ns := newNS(t)
	if err := Verify(ns); err != nil {
		t.Error(err)
	}
	own, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	if err := Verify(own); err == nil {
		t.Error("the namespace of this process passed")
	}
	if err := Verify(os.Stdin); err == nil {
		t.Error("a descriptor that is no namespace passed")
	}
	// A second way out, made as an attacker with all privileges would.
	var added error
	within(t, ns, func() error {
		added = netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "out"}, PeerName: "peer"})
		if added == nil {
			link, err := netlink.LinkByName("out")
			if err != nil {
				return err
			}
			return netlink.LinkSetUp(link)
		}
		return nil
	})
	testutil.RequireFeature(t, "veth interfaces", added)
	if err := Verify(ns); err == nil || !strings.Contains(err.Error(), `"out" is up`) {
		t.Errorf("with another interface: %v", err)
	}
}

func TestSysctls(t *testing.T) {
	ns := newNS(t)
	for _, s := range Sysctls {
		var got string
		within(t, ns, func() error {
			b, err := os.ReadFile("/proc/sys/net/" + s.Path)
			if s.Optional && errors.Is(err, fs.ErrNotExist) {
				b, err = []byte(s.Value), nil
			}
			got = strings.Join(strings.Fields(string(b)), " ")
			return err
		})
		if got != s.Value {
			t.Errorf("net/%s = %q, want %q", s.Path, got, s.Value)
		}
	}
}

// TestWithoutIPv6 is a host that has no IPv6: a path that does not exist is
// passed over only where that is allowed.
func TestWithoutIPv6(t *testing.T) {
	defer func(old []Sysctl) { Sysctls = old }(Sysctls)
	testutil.RequireRoot(t)
	Sysctls = []Sysctl{{"no6/conf/lo/disable_ipv6", "0", true}}
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	ns.Close()
	Sysctls = []Sysctl{{"no4/port", "0", false}}
	if ns, err := New(); err == nil {
		ns.Close()
		t.Error("a required setting that does not exist was passed over")
	}
}

// BenchmarkNew does not include what the kernel does after the descriptor is closed.
func BenchmarkNew(b *testing.B) {
	testutil.RequireRoot(b)
	for b.Loop() {
		ns, err := New()
		if err != nil {
			b.Fatal(err)
		}
		ns.Close()
	}
}

func BenchmarkLoopback(b *testing.B) {
	ns := newNS(b)
	for b.Loop() {
		if err := Loopback(ns); err != nil {
			b.Fatal(err)
		}
	}
}
