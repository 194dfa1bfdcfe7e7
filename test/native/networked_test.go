package native

import (
	"net"
	"testing"

	"github.com/boxd/boxd/engine"
)

// BenchmarkDialBox compares connecting to a port of a box, and one byte there and back, with the
// same on the host.
func BenchmarkDialBox(b *testing.B) {
	one := func(b *testing.B, dial func() (net.Conn, error)) {
		for b.Loop() {
			c, err := dial()
			if err != nil {
				b.Fatal(err)
			}
			exchange(b, c)
			c.Close()
		}
	}
	box := newBox(b, engine.Spec{})
	listeners, err := box.(engine.Networked).Listen(b.Context(), proxyAddress)
	if err != nil {
		b.Fatal(err)
	}
	answering(b, listeners[0], "")
	host, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	answering(b, host, "")
	b.Run("host", func(b *testing.B) {
		one(b, func() (net.Conn, error) { return net.Dial("tcp", host.Addr().String()) })
	})
	b.Run("box", func(b *testing.B) {
		one(b, func() (net.Conn, error) { return box.(engine.Networked).Dial(b.Context(), 3128) })
	})
}
