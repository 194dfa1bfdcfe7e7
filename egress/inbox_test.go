package egress

import (
	"net/netip"
	"testing"
)

// TestRoutedHere: all of 127.0.0.0/8 leads here, although the loopback interface has one address of
// it; the internet does not, whether there is a route to it or not.
func TestRoutedHere(t *testing.T) {
	for addr, want := range map[string]bool{"127.0.0.1": true, "127.200.3.4": true, "::1": true, "93.184.216.34": false, "2606:4700::1111": false} {
		if here, err := routedHere(netip.MustParseAddr(addr)); err != nil || here != want {
			t.Errorf("%s: %v, %v", addr, here, err)
		}
	}
}

func BenchmarkRoutedHere(b *testing.B) {
	addr := netip.MustParseAddr("127.0.0.1")
	for b.Loop() {
		if _, err := routedHere(addr); err != nil {
			b.Fatal(err)
		}
	}
}
