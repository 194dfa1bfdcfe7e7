package daemon

import (
	"maps"
	"net"
	"net/netip"
	"slices"

	"github.com/boxd/boxd/config"
	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/policy"
)

// surroundings returns what the proxies of boxes must know about this host: its addresses, and the
// listeners of this daemon, some of which trust clients because they are processes of this host, and
// others, the published ports, lead into boxes.
func (d *daemon) surroundings() rules.Surroundings {
	var listeners []*net.TCPAddr
	for _, l := range d.doors {
		if at, ok := l.Addr().(*net.TCPAddr); ok {
			listeners = append(listeners, at)
		}
	}
	if l := d.previews.Listener; l != nil {
		listeners = append(listeners, l.Addr().(*net.TCPAddr))
	}
	if l := d.langbot.listener; l != nil {
		listeners = append(listeners, l.Addr().(*net.TCPAddr))
	}
	own := egress.HostAddresses()
	if own() == nil && d.Config.Network == config.NetworkProxy {
		w := "the addresses of this host cannot be read: boxes with a network reach nothing"
		d.log.Error(w)
		d.warnings = append(d.warnings, w)
	}
	return rules.Surroundings{Own: own, Never: func(to netip.AddrPort) bool { return leadsTo(to, listeners, d.Config.Policy.Publish, own()) }}
}

// checkSecrets warns of secrets for the proxies of boxes that cannot be read. Requests that need one are
// refused until it can be: values are read for each request.
func (d *daemon) checkSecrets() {
	sources := d.Config.NetworkSources()
	for _, field := range slices.Sorted(maps.Keys(sources)) {
		if _, err := egress.ReadSecret(sources[field]); err != nil {
			d.log.Warn("requests of boxes that need this secret will be refused", "setting", field, "error", err)
			d.warnings = append(d.warnings, field+": was not readable when the daemon started: "+err.Error())
		}
	}
}

// leadsTo reports whether a connection from this host to an address reaches one of listeners, or can
// reach a published port of pool. own are the addresses of the host, nil if they are unknown: then
// every address may be one. It takes a listener on one address for one on all of them, because the
// host may translate addresses.
func leadsTo(to netip.AddrPort, listeners []*net.TCPAddr, pool policy.PortPool, own []netip.Addr) bool {
	addr := to.Addr().Unmap().WithZone("")
	here := own == nil || addr.IsLoopback() || addr.IsUnspecified()
	for _, a := range own {
		here = here || a == addr
	}
	if pool.Contains(int(to.Port())) && (here || pool.Address == addr) {
		return true
	}
	for _, l := range listeners {
		if l.Port == int(to.Port()) && (here || l.AddrPort().Addr().Unmap() == addr) {
			return true
		}
	}
	return false
}
