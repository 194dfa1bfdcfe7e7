package tcprelay

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"
)

// pair returns both ends of a TCP connection.
func pair(t *testing.T) (here, there *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	s, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close(); s.Close() })
	return s.(*net.TCPConn), c.(*net.TCPConn)
}

type result struct {
	fromA, fromB int64
	err          error
}

// start relays between the far ends of client and server.
func start(t *testing.T, idle time.Duration) (client, server, a, b *net.TCPConn, done chan result) {
	t.Helper()
	a, client = pair(t)
	b, server = pair(t)
	if err := errors.Join(Bound(a, 128<<10), Bound(b, 128<<10)); err != nil {
		t.Fatal(err)
	}
	done = make(chan result, 1)
	go func() {
		fromA, fromB, err := Relay(a, b, idle)
		done <- result{fromA, fromB, err}
	}()
	return client, server, a, b, done
}

// TestHalfClose: the client ends its stream, and gets the answer to all of it after that.
func TestHalfClose(t *testing.T) {
	client, server, _, _, done := start(t, time.Minute)
	data := make([]byte, 8<<20)
	rand.Read(data)
	go func() {
		client.Write(data)
		client.CloseWrite()
	}()
	got, err := io.ReadAll(server)
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("the server got %d bytes, %v", len(got), err)
	}
	go func() {
		server.Write(data[:1<<20])
		server.Close()
	}()
	if got, err = io.ReadAll(client); err != nil || !bytes.Equal(got, data[:1<<20]) {
		t.Fatalf("the client got %d bytes, %v", len(got), err)
	}
	if r := <-done; r != (result{8 << 20, 1 << 20, nil}) {
		t.Errorf("%+v", r)
	}
}

// TestResetIsPassedOn: a peer that breaks off is not taken for one whose data is complete.
func TestResetIsPassedOn(t *testing.T) {
	client, server, _, _, done := start(t, time.Minute)
	server.Write([]byte("half"))
	if _, err := io.ReadFull(client, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	Abort(server)
	if _, err := client.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("the client sees %v", err)
	}
	if r := <-done; r.err == nil {
		t.Errorf("%+v", r)
	}
}

// TestIdle ends a relay, whose peers neither send nor read.
func TestIdle(t *testing.T) {
	for name, fill := range map[string]bool{"silent": false, "does not read": true} {
		t.Run(name, func(t *testing.T) {
			client, _, _, _, done := start(t, 50*time.Millisecond)
			if fill {
				client.SetWriteDeadline(time.Now().Add(time.Minute))
				for {
					if _, err := client.Write(make([]byte, 1<<20)); err != nil {
						break // reset, as nothing moved any more
					}
				}
			}
			if r := <-done; !errors.Is(r.err, ErrIdle) {
				t.Errorf("%+v", r)
			}
		})
	}
}

// TestBusyIsNotIdle: a stream in one direction keeps both alive.
func TestBusyIsNotIdle(t *testing.T) {
	a, client := pair(t)
	b, server := pair(t)
	r := &relay{idle: time.Hour} // and idle since 1970
	if err := r.extend(b, os.ErrDeadlineExceeded); !errors.Is(err, ErrIdle) {
		t.Fatal(err)
	}
	var total int64
	done := make(chan error, 1)
	go func() {
		done <- r.copy(b, a, &total)
		b.Close()
	}()
	pass := func() {
		t.Helper()
		if _, err := client.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(server, make([]byte, 1)); err != nil {
			t.Fatal(err)
		}
	}
	pass()
	if err := r.extend(b, os.ErrDeadlineExceeded); err != nil {
		t.Errorf("the silent direction: %v", err)
	}
	past := time.Now().Add(-time.Minute)
	a.SetDeadline(past)
	b.SetDeadline(past)
	pass()
	client.Close()
	if err := <-done; err != nil || total != 2 {
		t.Errorf("%d bytes, %v", total, err)
	}
}

// TestAbortFromOutside ends a relay whose both directions are stuck.
func TestAbortFromOutside(t *testing.T) {
	client, _, a, b, done := start(t, time.Hour)
	client.SetWriteDeadline(time.Now().Add(300 * time.Millisecond))
	for {
		if _, err := client.Write(make([]byte, 1<<20)); errors.Is(err, os.ErrDeadlineExceeded) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
	Abort(a)
	Abort(b)
	if r := <-done; r.err == nil {
		t.Errorf("%+v", r)
	}
}

// BenchmarkBulk is the throughput through one relay.
func BenchmarkBulk(b *testing.B) {
	t := &testing.T{}
	client, server, _, _, done := start(t, time.Minute)
	buf := make([]byte, 256<<10)
	b.SetBytes(int64(len(buf)))
	go func() {
		for range b.N {
			client.Write(buf)
		}
		client.Close()
	}()
	b.ResetTimer()
	io.Copy(io.Discard, struct{ io.Reader }{server})
	server.Close()
	<-done
}
