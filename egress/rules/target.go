package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"golang.org/x/net/idna"
)

// Target is a destination that a program in a box asks for: a name or an address, never
// both, and a port from 1 to 65535.
type Target struct {
	Name string     // canonical, as [Name] returns it; "" if the program gave an address
	Addr netip.Addr // never IPv4-mapped and without a zone; invalid if the program gave a name
	Port uint16
}

// Host returns the name or address, an IPv6 address without brackets.
func (t Target) Host() string {
	if t.Name != "" {
		return t.Name
	}
	return t.Addr.String()
}

// String returns host:port as it stands in a URL.
func (t Target) String() string {
	if t.Name != "" {
		return t.Name + ":" + strconv.Itoa(int(t.Port))
	}
	return netip.AddrPortFrom(t.Addr, t.Port).String()
}

// ParseAuthority reads host:port. An IPv6 address stands in brackets. Without a port the
// result has the port fallback, and if that is 0 a port is required. User information,
// zones and addresses in other notations than dotted decimal and RFC 5952 are errors.
func ParseAuthority(s string, fallback uint16) (Target, error) {
	host, port, given := s, "", false
	if i := strings.LastIndexByte(s, ':'); i >= 0 && i > strings.LastIndexByte(s, ']') {
		host, port, given = s[:i], s[i+1:], true
	}
	t, err := ParseHost(host)
	if err != nil {
		return Target{}, err
	}
	t.Port = fallback
	if given {
		if t.Port, err = parsePort(port); err != nil {
			return Target{}, err
		}
	}
	if t.Port == 0 {
		return Target{}, fmt.Errorf("%q: a port is missing", shorten(s))
	}
	return t, nil
}

// ParseHost reads a name, an IPv4 address or an IPv6 address in brackets. The port of the
// result is 0.
func ParseHost(s string) (Target, error) {
	inner, opened := strings.CutPrefix(s, "[")
	inner, closed := strings.CutSuffix(inner, "]")
	if opened || closed {
		addr, err := netip.ParseAddr(inner)
		if err != nil || !opened || !closed || !addr.Is6() || addr.Zone() != "" {
			return Target{}, fmt.Errorf("%q: not an IPv6 address in brackets, without a zone", shorten(s))
		}
		return Target{Addr: addr.Unmap()}, nil
	}
	if addr, err := netip.ParseAddr(s); err == nil && addr.Is4() {
		return Target{Addr: addr}, nil
	}
	// Programs send names in ASCII. Unicode here is a mistake or an imitation.
	for i := range len(s) {
		if s[i] >= 0x80 {
			return Target{}, fmt.Errorf("%q: a name must be in ASCII (xn--…)", shorten(s))
		}
	}
	name, err := Name(s)
	return Target{Name: name}, err
}

// parsePort reads 1 … 65535, in decimal without signs and leading zeros.
func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 || s[0] < '1' || s[0] > '9' {
		return 0, fmt.Errorf("port %q: must be from 1 to 65535", shorten(s))
	}
	return uint16(n), nil
}

var errName = errors.New("not a valid host name")

// Name returns the canonical form of a host name: IDNA in ASCII, lower case, without a
// trailing dot. Letters, digits, hyphens and underscores are valid. A name whose last
// label is a number is an error, because libraries read it as an address in one of
// several notations (127.1, 0x7f000001, 2130706433).
func Name(s string) (string, error) {
	name := strings.ToLower(strings.TrimSuffix(s, "."))
	ascii := true
	for i := range len(s) {
		ascii = ascii && s[i] < 0x80
	}
	if !ascii || strings.HasPrefix(name, "xn--") || strings.Contains(name, ".xn--") {
		to, err := idna.Lookup.ToASCII(name)
		if err != nil || ascii && to != name {
			return "", fmt.Errorf("%q: %w", shorten(s), errName)
		}
		name = strings.TrimSuffix(to, ".")
	}
	if name == "" || len(name) > 253 {
		return "", fmt.Errorf("%q: %w: it must have 1 to 253 characters", shorten(s), errName)
	}
	last := ""
	for label := range strings.SplitSeq(name, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return "", fmt.Errorf("%q: %w", shorten(s), errName)
		}
		for _, c := range []byte(label) {
			if (c < 'a' || c > 'z') && (c < '0' || c > '9') && c != '-' && c != '_' {
				return "", fmt.Errorf("%q: %w", shorten(s), errName)
			}
		}
		last = label
	}
	if isNumber(last) {
		return "", fmt.Errorf("%q: neither a name nor an address in the usual notation", shorten(s))
	}
	return name, nil
}

// isNumber reports whether the WHATWG URL standard ("ends in a number") takes a host whose
// last label is this one for an IPv4 address.
func isNumber(label string) bool {
	digits := strings.Trim(label, "0123456789") == ""
	hex, prefixed := strings.CutPrefix(label, "0x")
	return digits || prefixed && strings.Trim(hex, "0123456789abcdef") == ""
}

// shorten keeps what a box sends from filling a message.
func shorten(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}
