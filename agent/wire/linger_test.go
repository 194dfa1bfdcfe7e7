package wire

import (
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// lingering returns a socket whose last close takes an hour: it waits until the other end, which
// reads nothing, has all data.
func lingering(t *testing.T) int {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(err)
	near, err := net.Dial("tcp", l.Addr().String())
	must(err)
	far, err := l.Accept()
	must(err)
	t.Cleanup(func() { far.Close() })
	file, err := near.(*net.TCPConn).File()
	must(err)
	fd, err := unix.FcntlInt(file.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	must(err)
	must(unix.SetNonblock(fd, true))
	for err == nil {
		_, err = unix.Write(fd, make([]byte, 1<<16))
	}
	if err != unix.EAGAIN {
		t.Fatal(err)
	}
	must(unix.SetNonblock(fd, false))
	must(unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}))
	file.Close()
	near.Close()
	l.Close()
	return fd
}

// TestDistrust: a peer hands over a descriptor whose close takes an hour, and nothing waits.
func TestDistrust(t *testing.T) {
	for _, c := range []struct {
		name string
		take func(t *testing.T, ours *Conn, send func(fds ...int))
	}{
		{"in a frame that nobody wants", func(t *testing.T, ours *Conn, send func(fds ...int)) {
			ours.Distrust()
			send(lingering(t))
			f, err := ours.Receive()
			if err != nil || len(f.FDs) != 1 {
				t.Fatal(f, err)
			}
			f.Close()
			ours.Close()
		}},
		{"refused", func(t *testing.T, ours *Conn, send func(fds ...int)) {
			ours.RefuseFDs()
			send(lingering(t))
			if f, err := ours.Receive(); err == nil {
				t.Fatal(f)
			}
			ours.Close()
		}},
		{"one of very many", func(t *testing.T, ours *Conn, send func(fds ...int)) {
			ours.RefuseFDs()
			send(append(slices.Repeat([]int{0}, scmMaxFD-1), lingering(t))...)
			if f, err := ours.Receive(); err == nil {
				t.Fatal(f)
			}
			ours.Close()
		}},
		{"never received", func(t *testing.T, ours *Conn, send func(fds ...int)) {
			ours.RefuseFDs()
			send(lingering(t))
			send(lingering(t), 0, lingering(t))
			ours.Close()
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
			if err != nil {
				t.Fatal(err)
			}
			theirs := pair[1]
			defer unix.Close(theirs)
			ours, err := FileConn(os.NewFile(uintptr(pair[0]), "ours"))
			if err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			c.take(t, ours, func(fds ...int) {
				t.Helper()
				frame := appendHeader(nil, 1, 1, 0, min(len(fds), MaxFDs))
				if err := unix.Sendmsg(theirs, frame, unix.UnixRights(fds...), nil, 0); err != nil {
					t.Fatal(err)
				}
				for _, fd := range fds {
					if fd != 0 {
						unix.Close(fd)
					}
				}
			})
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
		})
	}
}
