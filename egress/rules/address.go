package rules

import "net/netip"

// class is a range of addresses that a box may not reach unless an allow entry lies within
// the range.
type class struct {
	prefix netip.Prefix
	what   string
}

// itself tells a program that it has asked for its own box, which the proxy is not in.
const itself = "to reach the box itself, connect without the proxy (NO_PROXY)"

// classes are the special-purpose ranges of the IANA registries for IPv4 and IPv6, and
// addresses of metadata services outside of them. The first match counts.
var classes = func() (list []class) {
	for _, c := range []struct{ prefix, what string }{
		{"168.63.129.16/32", "a metadata address"}, // Azure: a public address that every virtual machine reaches
		{"169.254.169.254/32", "a metadata address"},
		{"100.100.100.200/32", "a metadata address"}, // Alibaba Cloud
		{"192.0.0.192/32", "a metadata address"},     // Oracle Cloud
		{"0.0.0.0/8", "an address of this host"},
		{"10.0.0.0/8", "a private address"},
		{"100.64.0.0/10", "a carrier-grade NAT address"},
		{"127.0.0.0/8", "a loopback address: " + itself},
		{"169.254.0.0/16", "a link-local address"},
		{"172.16.0.0/12", "a private address"},
		{"192.0.0.0/24", "a reserved address"},
		{"192.0.2.0/24", "a documentation address"},
		{"192.88.99.0/24", "a 6to4 relay"},
		{"192.168.0.0/16", "a private address"},
		{"198.18.0.0/15", "a benchmarking address"},
		{"198.51.100.0/24", "a documentation address"},
		{"203.0.113.0/24", "a documentation address"},
		{"224.0.0.0/4", "a multicast address"},
		{"240.0.0.0/4", "a reserved address"},
		{"::/128", "an address of this host"},
		{"::1/128", "a loopback address: " + itself},
		{"64:ff9b:1::/48", "a NAT64 address"}, // of a local translator (RFC 8215), which may reach private addresses
		{"2001::/32", "a Teredo address"},
		{"2001::/23", "a reserved address"},
		{"2001:db8::/32", "a documentation address"},
		{"2002::/16", "a 6to4 address"},
		{"3fff::/20", "a documentation address"},
		{"fd00:ec2::254/128", "a metadata address"},
		{"fd20:ce::254/128", "a metadata address"}, // Google Cloud
		{"fc00::/7", "a private address"},
		{"fe80::/10", "a link-local address"},
		{"fec0::/10", "a private address"},
		{"ff00::/8", "a multicast address"},
		// All of IPv6 but 2000::/3, which holds the global addresses.
		{"::/3", "a reserved address"},
		{"4000::/2", "a reserved address"},
		{"8000::/1", "a reserved address"},
	} {
		list = append(list, class{netip.MustParsePrefix(c.prefix), c.what})
	}
	return list
}()

// Surroundings is what the host knows about addresses. Its functions may be nil, must not
// block, and may be called from several goroutines.
type Surroundings struct {
	// Own returns the host's addresses. Only an allow entry of exactly that address
	// opens one. While it returns nil, because they cannot be read, every address is
	// refused. A nil function means that the host has none.
	Own func() []netip.Addr
	// Never reports addresses that no entry opens: the listeners of boxd itself. It need not know
	// NAT64 and 6to4 addresses: it is asked for the IPv4 address inside as well.
	Never func(netip.AddrPort) bool
}

// own returns the host's addresses; known is false if they cannot be read.
func (h Surroundings) own() (list []netip.Addr, known bool) {
	if h.Own == nil {
		return nil, true
	}
	list = h.Own()
	return list, list != nil
}

// IsListener reports whether ap, or the IPv4 address inside it, is one that no entry opens.
func (h Surroundings) IsListener(ap netip.AddrPort) bool {
	if h.Never == nil {
		return false
	}
	inner, ok := Embedded(ap.Addr())
	return h.Never(ap) || ok && h.Never(netip.AddrPortFrom(inner, ap.Port()))
}

// classOf returns the class of addr, nil for an address of the public internet and for a NAT64 address,
// which is as public as the IPv4 address inside. own are the addresses of the host.
func classOf(addr netip.Addr, own []netip.Addr) *class {
	for _, o := range own {
		if o.Unmap().WithZone("") == addr {
			return &class{netip.PrefixFrom(addr, addr.BitLen()), "an address of this host"}
		}
	}
	if nat64.Contains(addr) {
		return nil
	}
	for i := range classes {
		if classes[i].prefix.Contains(addr) {
			return &classes[i]
		}
	}
	return nil
}

// The well-known prefix of translators from IPv6 to IPv4 (RFC 6052, section 2.1), and that of 6to4 (RFC
// 3056). A prefix that a network chose for its own translator looks like any other public address.
var (
	nat64     = netip.MustParsePrefix("64:ff9b::/96")
	sixToFour = netip.MustParsePrefix("2002::/16")
)

// translated returns the IPv4 address that a NAT64 address stands for.
func translated(addr netip.Addr) (netip.Addr, bool) {
	if !nat64.Contains(addr) {
		return addr, false
	}
	b := addr.As16()
	return netip.AddrFrom4([4]byte(b[12:])), true
}

// Embedded returns the IPv4 address that a NAT64 or 6to4 address leads to.
func Embedded(addr netip.Addr) (netip.Addr, bool) {
	if sixToFour.Contains(addr) {
		b := addr.As16()
		return netip.AddrFrom4([4]byte(b[2:6])), true
	}
	return translated(addr)
}
