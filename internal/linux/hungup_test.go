package linux

import (
	"net"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestHungUp(t *testing.T) {
	for _, network := range []string{"unix", "tcp"} {
		address := "127.0.0.1:0"
		if network == "unix" {
			address = filepath.Join(t.TempDir(), "s")
		}
		l, err := net.Listen(network, address)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		ours, err := net.Dial(network, l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		theirs, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		defer theirs.Close()
		raw, err := theirs.(syscall.Conn).SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		ours.Write([]byte("x"))
		if HungUp(raw) {
			t.Errorf("%s: gone while it is there", network)
		}
		ours.Close()
		// On loopback the end has arrived when Close returns, unless the kernel is busy.
		raw.Control(func(fd uintptr) {
			_ = Retry(func() error {
				_, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}, 60_000)
				return err
			})
		})
		if !HungUp(raw) {
			t.Errorf("%s: there, with a byte unread, though it is gone", network)
		}
		theirs.Close()
		if !HungUp(raw) {
			t.Errorf("%s: closed, and there", network)
		}
	}
}
