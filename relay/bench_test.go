package relay

import (
	"context"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// endless is an Output that always has more, like a process that writes faster than any
// reader reads. Its bytes cost nothing.
type endless struct{}

func (endless) Release(int64) {}

func (endless) Bounds() (int64, int64) { return 0, 1 << 62 }

func (endless) ReadAt(_ context.Context, p []byte, off int64) (int, int64, error) {
	return len(p), off, nil
}

// bench runs f for TCP on loopback and for a Unix socket.
func bench(b *testing.B, f func(b *testing.B, l net.Listener)) {
	for _, network := range []string{"tcp", "unix"} {
		b.Run(network, func(b *testing.B) {
			addr := "127.0.0.1:0"
			if network == "unix" {
				dir, err := os.MkdirTemp("", "relay")
				if err != nil {
					b.Fatal(err)
				}
				defer os.RemoveAll(dir)
				addr = filepath.Join(dir, "s")
			}
			l, err := net.Listen(network, addr)
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			f(b, l)
		})
	}
}

// benchClient serves src on l, and attaches a writer to it.
func benchClient(b *testing.B, l net.Listener, src Source) *Client {
	h := NewHub(src, Options{})
	srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.Serve(w, r, all) })}
	go srv.Serve(l)
	c, err := Dial(b.Context(), DialOptions{URL: "http://relay", Write: true,
		NetDial: func(context.Context, string, string) (net.Conn, error) {
			return net.Dial(l.Addr().Network(), l.Addr().String())
		}})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { c.Close(); h.Close(); srv.Close() })
	return c
}

const bulk = MaxData

// BenchmarkBulk measures one process with one reader, and a plain copy over the same kind of
// connection, with reads of the same size.
func BenchmarkBulk(b *testing.B) {
	b.Run("relay", func(b *testing.B) {
		bench(b, func(b *testing.B, l net.Listener) {
			p := newProc(4 << 10)
			src := p.source()
			src.Stdout = endless{}
			c := benchClient(b, l, src)
			b.SetBytes(bulk)
			for n := 0; n < b.N*bulk; {
				ev, err := c.Recv()
				if err != nil {
					b.Fatal(err)
				}
				if d, ok := ev.(Data); ok {
					n += len(d.Bytes)
				}
			}
		})
	})
	b.Run("plain", func(b *testing.B) {
		bench(b, func(b *testing.B, l net.Listener) {
			go func() {
				c, err := l.Accept()
				if err != nil {
					return
				}
				defer c.Close()
				buf := make([]byte, bulk)
				for {
					if _, err := c.Write(buf); err != nil {
						return
					}
				}
			}()
			c, err := net.Dial(l.Addr().Network(), l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			buf := make([]byte, bulk)
			b.SetBytes(bulk)
			for range b.N {
				if _, err := io.ReadFull(c, buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}

// BenchmarkEcho measures a byte to a process that sends it back, and the same over a plain
// connection.
func BenchmarkEcho(b *testing.B) {
	b.Run("relay", func(b *testing.B) {
		bench(b, func(b *testing.B, l net.Listener) {
			p := newProc(1 << 20)
			p.in.keep = false
			p.in.onData = func(d []byte) { p.out.Write(d) }
			c := benchClient(b, l, p.source())
			start := time.Now()
			for range b.N {
				c.Write([]byte("x"))
				for got := false; !got; {
					ev, err := c.Recv()
					if err != nil {
						b.Fatal(err)
					}
					_, got = ev.(Data)
				}
			}
			b.ReportMetric(float64(time.Since(start).Microseconds())/float64(b.N), "µs/trip")
		})
	})
	b.Run("plain", func(b *testing.B) {
		bench(b, func(b *testing.B, l net.Listener) {
			go func() {
				if c, err := l.Accept(); err == nil {
					io.Copy(struct{ io.Writer }{c}, struct{ io.Reader }{c})
					c.Close()
				}
			}()
			c, err := net.Dial(l.Addr().Network(), l.Addr().String())
			if err != nil {
				b.Fatal(err)
			}
			defer c.Close()
			buf := make([]byte, 1)
			for range b.N {
				c.Write(buf)
				if _, err := io.ReadFull(c, buf); err != nil {
					b.Fatal(err)
				}
			}
		})
	})
}
