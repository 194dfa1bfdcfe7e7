package netns

import (
	"io"
	"net"
	"os"
	"os/exec"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/boxd/boxd/internal/testutil"
)

// TestNoMetrics: connections in a namespace leave nothing in the host's table of peers.
func TestNoMetrics(t *testing.T) {
	ip := testutil.RequireProgram(t, "ip")
	if left := metricsAfterTalk(t, ip, newNS(t)); left != "" {
		t.Errorf("the kernel remembers %q", left)
	}
	ns := newNS(t)
	within(t, ns, func() error { return os.WriteFile("/proc/sys/net/ipv4/tcp_no_metrics_save", []byte("0"), 0) })
	if metricsAfterTalk(t, ip, ns) == "" {
		t.Error("it remembers nothing in a namespace without the setting either: this test cannot tell")
	}
}

// metricsAfterTalk returns the kernel's metrics of a connection in ns.
func metricsAfterTalk(t *testing.T, ip string, ns *os.File) (metrics string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	var l net.Listener
	var client net.Conn
	within(t, ns, func() (err error) {
		if l, err = net.Listen("tcp4", "127.0.0.1:0"); err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f := os.NewFile(uintptr(fd), "client")
		defer f.Close()
		if err := unix.Connect(fd, &unix.SockaddrInet4{Port: l.Addr().(*net.TCPAddr).Port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
			return err
		}
		client, err = net.FileConn(f)
		return err
	})
	defer l.Close()
	server, err := l.Accept()
	must(err)
	data := make([]byte, 10_000)
	for _, pair := range [][2]net.Conn{{client, server}, {server, client}} {
		_, err := pair[0].Write(data)
		must(err)
		_, err = io.ReadFull(pair[1], data)
		must(err)
	}
	must(client.Close())
	must(server.Close())
	within(t, ns, func() error {
		out, err := exec.Command(ip, "tcp_metrics", "show").Output()
		metrics = string(out)
		return err
	})
	return metrics
}
