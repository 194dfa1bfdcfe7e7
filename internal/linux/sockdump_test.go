package linux

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
)

// Both ways to list listeners agree.
func TestTCPListeners(t *testing.T) {
	diag, err := DiagSocket()
	if err != nil {
		t.Fatal(err)
	}
	defer diag.Close()
	var want [2][]Listener
	for range 1000 { // several messages
		at := listenTCP(t, "tcp4", "127.0.0.1:0").Addr().String()
		want[0] = append(want[0], netip.MustParseAddrPort(at))
	}
	for _, at := range []string{listenTCP(t, "tcp6", "[::1]:0").Addr().String(), listenTCP(t, "tcp6", "[::]:0").Addr().String()} {
		want[1] = append(want[1], netip.MustParseAddrPort(at))
	}
	mapped := netip.MustParseAddrPort(listenMapped(t).Addr().String())
	want[1] = append(want[1], netip.AddrPortFrom(netip.AddrFrom16(mapped.Addr().As16()), mapped.Port()))
	dialTCP(t, want[0][0].String())
	for range 2 { // the socket can be used again
		for i, list := range want {
			got, err := TCPListeners(diag, i == 1)
			if err != nil {
				t.Fatal(err)
			}
			for _, l := range list {
				if n := len(slices.DeleteFunc(slices.Clone(got), func(o Listener) bool { return o != l })); n != 1 {
					t.Fatalf("%v is %d times in %d listeners", l, n, len(got))
				}
			}
		}
	}
}

// Any answer is a list or an error.
func FuzzParseDump(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{20, 0, 0, 0, 3, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0})
	f.Add([]byte{36, 0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 254, 255, 255, 255})
	one := make([]byte, 88)
	copy(one, []byte{88, 0, 0, 0, 20, 0, 2, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 10, 0, 0, 0x1f, 0x90, 0, 0, 127, 0, 0, 1})
	f.Add(one)
	if list, done, err := parseDump(one); err != nil || done || fmt.Sprint(list) != "[127.0.0.1:8080]" {
		f.Errorf("%v, %v, %v", list, done, err)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		list, _, err := parseDump(b)
		if len(list) > len(b)/72 || err != nil && len(list) > 0 {
			t.Errorf("%d listeners of %d bytes, %v", len(list), len(b), err)
		}
	})
}
