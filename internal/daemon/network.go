package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"

	"github.com/boxd/boxd/config"
	"github.com/boxd/boxd/egress"
	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/policy"
	"github.com/boxd/boxd/webhook"
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

// checkSecrets warns of secrets that cannot be read. What needs one fails until it can be: each is read
// whenever it is used.
func (d *daemon) checkSecrets() {
	for _, err := range d.unreadableSecrets(func(rules.Source) bool { return true }) {
		d.log.Warn("a secret cannot be read", "error", err)
		d.warnings = append(d.warnings, "when the daemon started: "+err.Error())
	}
}

// unreadableSecrets reads the secrets for the proxies of boxes and for webhooks that wanted selects, and the logins of
// registries, as the daemon's user. The errors name the setting, the file, the user and the effect.
func (d *daemon) unreadableSecrets(wanted func(rules.Source) bool) (found []error) {
	read := func(setting, effect string, read func() error) {
		err := asUser(d.account, read)
		switch {
		case errors.Is(err, fs.ErrPermission):
			err = fmt.Errorf("%w: the daemon's user %s must be able to read the file, and to search (x) its directories", err, d.account)
		case errors.Is(err, fs.ErrNotExist):
			err = fmt.Errorf("%w: create the file so that the daemon's user %s can read it", err, d.account)
		}
		if err != nil {
			found = append(found, fmt.Errorf("%s: %s: %w", setting, effect, err))
		}
	}
	sources := d.Config.NetworkSources()
	for _, setting := range slices.Sorted(maps.Keys(sources)) {
		if wanted(sources[setting]) {
			read(setting, "requests of boxes will be refused", func() error {
				_, err := egress.ReadSecret(sources[setting])
				return err
			})
		}
	}
	hooks := d.Config.WebhookSources()
	for _, setting := range slices.Sorted(maps.Keys(hooks)) {
		if wanted(hooks[setting]) {
			read(setting, "messages wait until it can be read", func() error {
				text, err := egress.ReadSecret(hooks[setting])
				if err == nil {
					_, err = webhook.ParseSecrets(text)
				}
				return err
			})
		}
	}
	for _, host := range slices.Sorted(maps.Keys(d.Config.Images.Registries)) {
		if file := d.Config.Images.Registries[host].LoginFile; file != "" {
			read("images.registries."+host+".login_file", "images cannot be pulled from there", func() error {
				_, err := os.ReadFile(file)
				return err
			})
		}
	}
	return found
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
