package wire

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// connPair returns two connected ends, closed with the test.
func connPair(t testing.TB) (a, b *Conn) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	ends := make([]*Conn, 2)
	for i, fd := range fds {
		if ends[i], err = FileConn(os.NewFile(uintptr(fd), "end")); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends[0], ends[1]
}

func tempFile(t testing.TB, content string) *os.File {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	if _, err := f.WriteString(content); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestFramesWithDescriptors(t *testing.T) {
	a, b := connPair(t)
	one, two, three := tempFile(t, "one"), tempFile(t, "two"), tempFile(t, "three")
	sent := make(chan error, 1)
	go func() {
		sent <- errors.Join(
			a.Send(TypeSpawn, 1, bytes.Repeat([]byte("x"), 300<<10), one, two),
			a.Send(TypeSignal, 2, nil),
			a.Send(TypeSpawn, 3, []byte("y"), three))
	}()
	t.Cleanup(func() { // before the files are closed
		a.Close()
		if err := <-sent; err != nil {
			t.Error(err)
		}
	})
	for _, want := range []struct {
		id, size int
		files    []string
	}{{1, 300 << 10, []string{"one", "two"}}, {2, 0, nil}, {3, 1, []string{"three"}}} {
		f, err := b.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if int(f.ID) != want.id || len(f.Body) != want.size || len(f.FDs) != len(want.files) {
			t.Fatalf("frame %d of %d bytes with %d descriptors, want %+v", f.ID, len(f.Body), len(f.FDs), want)
		}
		for i, file := range f.Files() {
			defer file.Close()
			got := make([]byte, 16)
			n, _ := file.ReadAt(got, 0)
			if string(got[:n]) != want.files[i] {
				t.Errorf("descriptor %d of frame %d is %q", i, want.id, got[:n])
			}
		}
	}
}

func TestSendRefusesWhatReceiveWould(t *testing.T) {
	a, _ := connPair(t)
	if err := a.Send(1, 1, make([]byte, MaxBody+1)); !errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
	if err := a.SendFDs(1, 1, nil, make([]int, MaxFDs+1)...); !errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
}

func TestBrokenPeers(t *testing.T) {
	header := func(edit func(b []byte)) []byte {
		b := appendHeader(nil, 1, 1, 0, 0)
		edit(b)
		return b
	}
	for name, c := range map[string]struct {
		bytes []byte
		want  error
	}{
		"end between frames":  {nil, io.EOF},
		"half a header":       {header(func([]byte) {})[:5], io.ErrUnexpectedEOF},
		"half a body":         {header(func(b []byte) { b[0] = 9 }), io.ErrUnexpectedEOF},
		"huge body":           {header(func(b []byte) { b[3] = 0xff }), ErrProtocol},
		"too many fds":        {header(func(b []byte) { b[5] = MaxFDs + 1 }), ErrProtocol},
		"reserved byte":       {header(func(b []byte) { b[6] = 1 }), ErrProtocol},
		"missing descriptors": {header(func(b []byte) { b[5] = 2 }), ErrProtocol},
	} {
		a, b := connPair(t)
		if len(c.bytes) == 0 {
			a.Close()
		} else if _, err := a.sock.send(c.bytes, nil); err != nil {
			t.Fatal(err)
		}
		a.Close()
		if _, err := b.Receive(); !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
	}
}

// Descriptors beyond the bound, or that belong to no frame, are closed.
func TestUnwantedDescriptors(t *testing.T) {
	before := countFDs(t)
	t.Cleanup(func() {
		if after := countFDs(t); after > before {
			t.Errorf("%d descriptors, %d before", after, before)
		}
	})
	a, b := connPair(t)
	f := tempFile(t, "")
	fds := make([]int, 100)
	for i := range fds {
		fds[i] = int(f.Fd())
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 10 {
			if _, err := a.sock.send([]byte{1}, unix.UnixRights(fds...)); err != nil {
				return
			}
		}
	}()
	if _, err := b.Receive(); !errors.Is(err, ErrProtocol) {
		t.Error(err)
	}
	b.Close()
	<-done
}

func countFDs(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(entries)
}

func TestCloseEndsReceive(t *testing.T) {
	_, b := connPair(t)
	done := make(chan error)
	go func() {
		_, err := b.Receive()
		done <- err
	}()
	b.Close()
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Error(err)
	}
}

// FuzzReceive sends arbitrary bytes in two pieces: no panic, no frame beyond the
// bounds, and an end.
func FuzzReceive(f *testing.F) {
	f.Add(appendHeader(nil, TypeSpawn, 7, 3, 0), []byte("abc"))
	f.Add([]byte{1, 2, 3}, []byte{})
	f.Fuzz(func(t *testing.T, first, second []byte) {
		if len(first)+len(second) > 64<<10 {
			return // would fill the socket's buffer
		}
		a, b := connPair(t)
		for _, part := range [][]byte{first, second} {
			if _, err := a.sock.send(part, nil); err != nil {
				t.Fatal(err)
			}
		}
		a.Close()
		for {
			frame, err := b.Receive()
			if err != nil {
				return
			}
			if len(frame.Body) > MaxBody || len(frame.FDs) != 0 {
				t.Errorf("frame of %d bytes, %d descriptors", len(frame.Body), len(frame.FDs))
			}
		}
	})
}
