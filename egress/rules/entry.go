package rules

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// entry is one line of allow or deny.
type entry struct {
	text   string
	name   string // exact, or ".x" for "*.x"; "" if prefix is valid
	prefix netip.Prefix
	lo, hi uint16 // ports; 0, 0 if the entry names none
}

// parseEntry reads NAME, *.NAME, ADDRESS or CIDR, each with an optional :PORT or
// :PORT-PORT. IPv6 with ports stands in brackets: [2001:db8::/32]:443.
func parseEntry(text string) (entry, error) {
	e := entry{text: text}
	host, ports := text, ""
	switch {
	case strings.Contains(text, "://"):
		return e, errors.New("must be a name or an address without a scheme, such as example.com, or example.com:8443 for another port")
	case len(text) > 300:
		return e, errors.New("must have at most 300 characters")
	case text == "*" || strings.HasPrefix(text, "*:"):
		return e, errors.New(`must not be "*" alone: public: true in the configuration allows every public address`)
	case strings.HasPrefix(text, "["):
		inside, after, ok := strings.Cut(text[1:], "]")
		if host = inside; !ok || after != "" && after[0] != ':' || !strings.Contains(inside, ":") {
			return e, errors.New("must be an IPv6 address or CIDR in brackets, then :PORT or :PORT-PORT")
		}
		if after != "" {
			ports = after[1:]
			if ports == "" {
				return e, errors.New("must have a port after the colon, such as example.com:22")
			}
		}
	case strings.Count(text, ":") == 1:
		host, ports, _ = strings.Cut(text, ":")
		if ports == "" {
			return e, errors.New("must have a port after the colon, such as example.com:22")
		}
	}
	if ports != "" {
		low, high, isRange := strings.Cut(ports, "-")
		if !isRange {
			high = low
		}
		var errLo, errHi error
		e.lo, errLo = parsePort(low)
		e.hi, errHi = parsePort(high)
		if err := errors.Join(errLo, errHi); err != nil || e.lo > e.hi {
			return e, errors.New("must have a port or PORT-PORT from 1 to 65535 after the colon, such as example.com:22 or example.com:8000-8010")
		}
	}
	return e, e.parseHost(host)
}

// parseHost reads the part of an entry before the ports.
func (e *entry) parseHost(host string) (err error) {
	if addr, err := netip.ParseAddr(host); err == nil {
		if addr.Zone() != "" {
			return errors.New("an address must have no zone")
		}
		addr = addr.Unmap()
		e.prefix = netip.PrefixFrom(addr, addr.BitLen())
		return nil
	}
	if strings.Contains(host, "/") {
		e.prefix, err = netip.ParsePrefix(host)
		switch {
		case err != nil:
			return errors.New("must be a CIDR such as 203.0.113.0/24")
		case e.prefix.Addr().Is4In6():
			return errors.New("must be written as an IPv4 CIDR")
		case e.prefix != e.prefix.Masked():
			return fmt.Errorf("has bits after its prefix; write %s", e.prefix.Masked())
		}
		return nil
	}
	bare, wild := strings.CutPrefix(host, "*.")
	if strings.Contains(bare, "*") {
		return errors.New(`a wildcard must be a whole first label, such as "*.example.com"`)
	}
	if e.name, err = Name(bare); err != nil {
		return errors.New("must be a name, address or CIDR, with or without :PORT, such as example.com, *.example.com or 10.1.2.0/24:5432")
	}
	if wild {
		e.name = "." + e.name
	}
	return nil
}

// hasPort reports whether the entry covers port; all says whether an entry without ports
// covers every port, or only 80 and 443.
func (e *entry) hasPort(port uint16, all bool) bool {
	if e.lo == 0 {
		return all || port == 80 || port == 443
	}
	return e.lo <= port && port <= e.hi
}

// hasName reports whether name, in canonical form, is the entry's or matches its wildcard.
func (e *entry) hasName(name string) bool {
	if e.name == "" {
		return false
	}
	return e.name == name || e.name[0] == '.' && strings.HasSuffix(name, e.name)
}

// hasAddr reports whether addr, or the IPv4 address that a NAT64 address stands for, is the entry's or
// in its CIDR.
func (e *entry) hasAddr(addr netip.Addr) bool {
	if !e.prefix.IsValid() {
		return false
	}
	inner, ok := translated(addr)
	return e.prefix.Contains(addr) || ok && e.prefix.Contains(inner)
}
