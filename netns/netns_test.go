package netns

import (
	"errors"
	"fmt"
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
	"github.com/boxd/boxd/internal/oneline"
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
	// Port 80 needs no capability either, see TestUnprivileged.
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

// TestUnprivileged: a thread without capabilities may listen on port 80, but may not create a
// ping socket, whose queue would be charged to no cgroup.
func TestUnprivileged(t *testing.T) {
	const base = 0x6ffd0000
	within(t, newNS(t), func() error {
		// Raw system calls change only this thread, which is thrown away afterwards.
		for _, call := range []uintptr{unix.SYS_SETRESGID, unix.SYS_SETRESUID} {
			if _, _, errno := unix.RawSyscall(call, base, base, base); errno != 0 {
				return errno
			}
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return os.NewSyscallError("socket", err)
		}
		defer unix.Close(fd)
		if err := unix.Bind(fd, &unix.SockaddrInet4{Port: 80, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return os.NewSyscallError("bind", err)
		}
		for family, protocol := range map[int]int{unix.AF_INET: unix.IPPROTO_ICMP, unix.AF_INET6: unix.IPPROTO_ICMPV6} {
			fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, protocol)
			if err == nil {
				unix.Close(fd)
			}
			if err != unix.EACCES && err != unix.EAFNOSUPPORT {
				return fmt.Errorf("ping socket of family %d: %v, want EACCES", family, err)
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
	if err := in(pidfd, setUp); err != nil {
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
	// Add a second way out, as an attacker with all privileges would.
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

// read returns a setting of the thread's network namespace.
func read(path string) (string, error) {
	text, err := os.ReadFile("/proc/sys/net/" + path)
	return oneline.Fold(string(text)), err
}

// TestSysctls: each setting is in force in a new namespace, is no larger than what
// the kernel gave, and is unchanged on the host.
func TestSysctls(t *testing.T) {
	testutil.RequireRoot(t)
	before := map[string]string{}
	for _, s := range Sysctls {
		before[s.Path], _ = read(s.Path)
	}
	ns := newNS(t)
	for _, s := range Sysctls {
		var got, given string
		var missing error
		within(t, ns, func() (err error) {
			got, missing = read(s.Path)
			return nil
		})
		if errors.Is(missing, fs.ErrNotExist) && (s.Optional || s.Since != "") {
			t.Logf("net/%s: not in a namespace on this kernel", s.Path)
			continue
		}
		if missing != nil {
			t.Error(missing)
			continue
		}
		if err := linux.OnThrowawayThread(func() (err error) {
			if err = unix.Unshare(unix.CLONE_NEWNET); err == nil {
				given, err = read(s.Path)
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if want := s.wanted(given); got != want {
			t.Errorf("net/%s = %q, want %q", s.Path, got, want)
		}
	}
	for path, want := range before {
		if got, _ := read(path); got != want {
			t.Errorf("the host's net/%s was %q and is %q", path, want, got)
		}
	}
}

func TestWanted(t *testing.T) {
	for _, c := range []struct {
		value   string
		lower   bool
		present string
		want    string
	}{
		{"0", false, "1", "0"},
		{"1", false, "0", "1"},
		{"128", true, "4096", "128"},
		{"128", true, "16", "16"},
		{"4096 131072 1048576", true, "4096 131072 33554432", "4096 131072 1048576"},
		{"4096 131072 1048576", true, "4096 16384 65536", "4096 16384 65536"},
		{"128", true, "", "128"},
	} {
		if got := (Sysctl{Value: c.value, Lower: c.lower}).wanted(c.present); got != c.want {
			t.Errorf("%q where %q is present (lower only: %v): %q, want %q", c.value, c.present, c.lower, got, c.want)
		}
	}
}

// TestHostWide: on this kernel, either each namespace has its own value of a setting, or
// FindHostWide reports the host's value.
func TestHostWide(t *testing.T) {
	ns := newNS(t)
	found, err := FindHostWide()
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, h := range found {
		t.Logf("net/%s is %s for the whole host, before Linux %s", h.Path, h.Present, h.Since)
		names[h.Path] = h.Present
	}
	for _, s := range Sysctls {
		if s.Since == "" {
			continue
		}
		var in, host string
		within(t, ns, func() error { in, _ = read(s.Path); return nil })
		host, _ = read(s.Path)
		switch present, is := names[s.Path]; {
		case is && (present != host || in != "" && in != host):
			t.Errorf("net/%s: found %q, the host has %q and a namespace %q", s.Path, present, host, in)
		case !is && in != s.Value && host != s.Value && host != "" && s.wanted(host) != host:
			t.Errorf("net/%s is %q in a namespace and %q on the host, and was not found", s.Path, in, host)
		}
	}
}

// TestMissing: a missing setting is skipped only if that is allowed, as for a host without
// IPv6.
func TestMissing(t *testing.T) {
	defer func(old []Sysctl) { Sysctls = old }(Sysctls)
	testutil.RequireRoot(t)
	Sysctls = []Sysctl{{Path: "no6/conf/lo/disable_ipv6", Value: "0", Optional: true}, {Path: "no4/later", Value: "0", Since: "9.9"}}
	ns, err := New()
	if err != nil {
		t.Fatal(err)
	}
	ns.Close()
	if found, err := FindHostWide(); err != nil || len(found) > 0 {
		t.Errorf("what no kernel has was found for the whole host: %v, %v", found, err)
	}
	// rmem_max is shown in a namespace since 6.11 and cannot be written there.
	Sysctls = []Sysctl{{Path: "core/rmem_max", Value: "4096", Lower: true, Since: "9.9"}}
	host, err := read("core/rmem_max")
	if err != nil {
		t.Fatal(err)
	}
	if found, err := FindHostWide(); err != nil || len(found) != 1 || found[0].Present != host {
		t.Errorf("rmem_max, %s for the whole host: found %v, %v", host, found, err)
	}
	Sysctls = []Sysctl{{Path: "no4/port", Value: "0"}}
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
		if err := in(ns, setUp); err != nil {
			b.Fatal(err)
		}
	}
}
