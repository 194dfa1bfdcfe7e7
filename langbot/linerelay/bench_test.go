package linerelay

import (
	"bytes"
	"context"
	"io"
	"testing"
)

// flood is an Output of size bytes, all of which are available at no cost.
type flood struct {
	text     []byte // whole lines, repeated forever
	size     int64
	released int64
}

func (f *flood) Bounds() (int64, int64) { return 0, f.size }
func (f *flood) Release(off int64)      { f.released = off }
func (f *flood) Released() int64        { return f.released }

func (f *flood) ReadAt(_ context.Context, p []byte, off int64) (int, int64, error) {
	if off >= f.size {
		return 0, off, io.EOF
	}
	p = p[:min(int64(len(p)), f.size-off)]
	n := 0
	for n < len(p) {
		n += copy(p[n:], f.text[(off+int64(n))%int64(len(f.text)):])
	}
	return n, off, nil
}

// BenchmarkLines sends 10 MB of lines to one client on loopback, which reads each message
// separately.
func BenchmarkLines(b *testing.B) {
	const size = 10_000_000
	for _, c := range []struct {
		name string
		line []byte
	}{
		{"100 bytes", append(bytes.Repeat([]byte("x"), 99), '\n')},
		{"100 bytes, not ASCII", append(append(bytes.Repeat([]byte("é"), 49), 'x'), '\n')},
		{"100 bytes, no UTF-8", append(bytes.Repeat([]byte("\xff"), 99), '\n')},
		{"10000 bytes", append(bytes.Repeat([]byte("x"), 9999), '\n')},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.SetBytes(size)
			b.ReportAllocs()
			for range b.N {
				p := newProc(4 << 10)
				src := p.source()
				src.Stdout = &flood{text: bytes.Repeat(c.line, 1000), size: size}
				receive(b, serveSource(b, p, src, nil).dial(), size/len(c.line))
			}
		})
	}
}

// receive reads messages until the close frame.
func receive(b *testing.B, c *client, want int) {
	n := 0
	for {
		_, r, err := c.NextReader()
		if err != nil {
			break
		}
		if _, err := io.Copy(io.Discard, r); err != nil {
			b.Fatal(err)
		}
		n++
	}
	if n != want {
		b.Fatalf("%d messages, want %d", n, want)
	}
	c.Close()
}

// BenchmarkSplitter measures the splitter alone.
func BenchmarkSplitter(b *testing.B) {
	line := append(bytes.Repeat([]byte("x"), 99), '\n')
	text := bytes.Repeat(line, largeBuffer/100+1)
	b.SetBytes(largeBuffer)
	s := newSplitter(0)
	for range b.N {
		s.add(copy(s.space(), text))
		for _, ok := s.line(); ok; _, ok = s.line() {
		}
	}
}
