package linux

import (
	"bufio"
	"encoding/hex"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// Listener is the address of a listening socket.
type Listener = netip.AddrPort

// Socket states in the tables (include/net/tcp_states.h). An unconnected UDP socket is in
// state 7.
const (
	tcpListen = "0A"
	udpOpen   = "07"
)

// ParseListeners reads /proc/<pid>/net/<protocol>, where protocol is tcp, tcp6, udp or
// udp6. A malformed line is an error.
func ParseListeners(r io.Reader, protocol string) ([]Listener, error) {
	state := tcpListen
	if strings.HasPrefix(protocol, "udp") {
		state = udpOpen
	}
	var found []Listener
	lines := bufio.NewScanner(r)
	for first := true; lines.Scan(); first = false {
		if first {
			continue // the headings
		}
		// sl local_address rem_address st …, proc_net_tcp.rst
		fields := strings.Fields(lines.Text())
		if len(fields) < 4 {
			return nil, fmt.Errorf("socket table, line %q: unknown form", lines.Text())
		}
		if fields[3] != state {
			continue
		}
		l, err := parseAddress(fields[1], strings.HasSuffix(protocol, "6"))
		if err != nil {
			return nil, fmt.Errorf("socket table, line %q: %w", lines.Text(), err)
		}
		found = append(found, l)
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading socket table: %w", err)
	}
	return found, nil
}

// parseAddress reads an address such as 0100007F:1F90: four-byte words in the machine's
// byte order, which is little endian here, and the port.
func parseAddress(s string, six bool) (Listener, error) {
	addr, port, ok := strings.Cut(s, ":")
	n, perr := strconv.ParseUint(port, 16, 16)
	raw, err := hex.DecodeString(addr)
	want := 4
	if six {
		want = 16
	}
	if !ok || perr != nil || err != nil || len(raw) != want {
		return Listener{}, fmt.Errorf("address %q: unknown form", s)
	}
	for word := range slices.Chunk(raw, 4) {
		slices.Reverse(word)
	}
	ip, _ := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(ip, uint16(n)), nil
}
