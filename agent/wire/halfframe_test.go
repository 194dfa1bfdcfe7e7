package wire

import (
	"errors"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Half a frame ends the connection, a pause between two frames does not, and a peer
// that sends a byte now and then gains no time. It uses a Conn whose frame began long ago,
// so that it need not wait for FrameTimeout.
func TestHalfFrame(t *testing.T) {
	for _, blocking := range []bool{false, true} {
		fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		peer := os.NewFile(uintptr(fds[1]), "peer")
		defer peer.Close()
		c := BlockingConn(fds[0])
		if !blocking {
			if c, err = FileConn(os.NewFile(uintptr(fds[0]), "conn")); err != nil {
				t.Fatal(err)
			}
		}
		defer c.Close()
		whole := appendHeader(nil, TypeWatch, 1, 2, 0)
		whole = append(whole, "ab"...)
		send := func(b []byte) {
			t.Helper()
			if _, err := peer.Write(b); err != nil {
				t.Fatal(err)
			}
		}
		send(append(whole, whole[:5]...))
		if f, err := c.Receive(); err != nil || string(f.Body) != "ab" {
			t.Fatalf("%+v, %v", f, err)
		}
		send(whole[5:])
		if _, err := c.Receive(); err != nil || !c.begun.IsZero() {
			t.Fatalf("a frame in two parts: %v", err)
		}
		go func() {
			time.Sleep(20 * time.Millisecond)
			_, _ = peer.Write(whole)
		}()
		if _, err := c.Receive(); err != nil {
			t.Fatalf("after a pause: %v", err)
		}
		send(whole[:5])
		c.begun = time.Now().Add(50*time.Millisecond - FrameTimeout)
		if _, err := c.Receive(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("half a frame: %v", err)
		}
	}
}
