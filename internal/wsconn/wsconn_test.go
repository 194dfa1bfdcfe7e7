package wsconn

import (
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

// TestProgress: a slow peer gets a whole message, however long that takes; one that accepts
// nothing is given up, and so is any peer of a connection that is hurried.
func TestProgress(t *testing.T) {
	for _, c := range []struct {
		name  string
		pause time.Duration // between two bytes that the peer reads
		hurry time.Duration // after which the connection is hurried; 0: never
		want  time.Duration // until the write returns
		whole bool
	}{
		{"slow", 9 * time.Second, 0, 90 * time.Second, true},
		{"stalled", 11 * time.Second, 0, 10 * time.Second, false},
		{"hurried and stalled", 9 * time.Second, 12 * time.Second, 13 * time.Second, false},
		{"hurried and slow", 600 * time.Millisecond, 500 * time.Millisecond, 1500 * time.Millisecond, false},
		{"hurried and fast enough", 100 * time.Millisecond, 500 * time.Millisecond, time.Second, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				here, there := net.Pipe()
				var reader sync.WaitGroup
				reader.Go(func() {
					for range 10 {
						time.Sleep(c.pause)
						if _, err := there.Read(make([]byte, 1)); err != nil {
							return
						}
					}
				})
				defer reader.Wait()
				defer here.Close()
				conn := New(here, 10*time.Second)
				if c.hurry > 0 {
					time.AfterFunc(c.hurry, func() { conn.Hurry(time.Second) })
				}
				began := time.Now()
				conn.SetWriteDeadline(began) // has no effect
				n, err := conn.Write(make([]byte, 10))
				if d := time.Since(began); d != c.want || c.whole != (n == 10 && err == nil) || !c.whole && !errors.Is(err, os.ErrDeadlineExceeded) {
					t.Errorf("%d bytes, %v after %v, want %v", n, err, d, c.want)
				}
			})
		})
	}
}

// TestHurryBoundsLaterWrites, each by itself.
func TestHurryBoundsLaterWrites(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		here, there := net.Pipe()
		defer here.Close()
		conn := New(here, time.Hour)
		conn.Hurry(time.Second)
		time.Sleep(time.Minute)
		go io.ReadFull(there, make([]byte, 3))
		if n, err := conn.Write([]byte("abc")); n != 3 || err != nil {
			t.Fatalf("%d bytes, %v", n, err)
		}
		began := time.Now()
		_, err := conn.Write([]byte("d"))
		if d := time.Since(began); d != time.Second || !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%v after %v", err, d)
		}
	})
}

func TestClosingMessage(t *testing.T) {
	long := make([]byte, 0, 200)
	for len(long) < 190 {
		long = append(long, "€"...)
	}
	m := (&Closing{1011, "x" + string(long)}).Message()
	if len(m) > 125 || len(m) < 122 || !utf8.Valid(m[2:]) {
		t.Errorf("%d bytes: %q", len(m), m)
	}
}

func TestIsLost(t *testing.T) {
	for _, err := range []error{io.EOF, io.ErrUnexpectedEOF, io.ErrClosedPipe, net.ErrClosed, os.ErrDeadlineExceeded, &net.OpError{Err: errors.New("x")}} {
		if !IsLost(err) {
			t.Errorf("%v is not", err)
		}
	}
	if IsLost(errors.New("bad frame")) {
		t.Error("a bad frame is")
	}
}
