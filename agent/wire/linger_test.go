package wire

import (
	"os"
	"slices"
	"testing"
	"time"

	"github.com/boxd/boxd/internal/testutil"
	"golang.org/x/sys/unix"
)

func lingering(t *testing.T) int {
	t.Helper()
	fd, stop, err := testutil.LingeringSocket()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(stop)
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
