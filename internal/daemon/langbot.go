package daemon

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"github.com/boxd/boxd/api"
	"github.com/boxd/boxd/config"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
	"github.com/boxd/boxd/langbot"
	"github.com/boxd/boxd/langbot/attest"
	langbotdoor "github.com/boxd/boxd/langbot/door"
	"github.com/boxd/boxd/policy"
)

// langbotPrefix is the path of LangBot's protocol on the API's own listeners.
const langbotPrefix = "/langbot/"

// langbotDoors serve LangBot's Box Runtime protocol: on a TCP address if one is configured, and
// below langbotPrefix for users of the API's socket.
type langbotDoors struct {
	server   *langbot.Server
	listener *net.TCPListener  // nil: none is configured
	users    *localUsers       // may use listener; nil: it asks for a secret instead
	tcp      *langbotdoor.Door // nil without listener
	local    *langbotdoor.Door
}

// listenLangbot opens the TCP address of LangBot's protocol and reads its secret. Without a secret,
// users and the owners of the mount roots may connect.
func (d *daemon) listenLangbot(users *localUsers) (err error) {
	c := &d.Config.Langbot
	if c.Listen == "" {
		return nil
	}
	if c.Token, err = c.Secret(); err != nil {
		return err
	}
	l, err := listenTCP(c.Listen, c.Token != "")
	if err != nil {
		return fmt.Errorf("langbot: %w", err)
	}
	d.langbot.listener = l
	if c.Token != "" {
		return nil
	}
	rules, err := policy.New(d.Config.Policy)
	if err != nil {
		return err
	}
	d.langbot.users = users.forLangbot(rules.MountRoots(c.Tenant))
	if err := linux.CanNameTCPClients(l); err != nil {
		return fmt.Errorf("langbot.listen %q: the users of its clients cannot be found: %w: %s", l.Addr(), err, d.langbot.users.remedy)
	}
	return nil
}

// openLangbot opens the doors. It runs without privileges, after the sessions were opened.
func (d *daemon) openLangbot(roots []string) (err error) {
	c := &d.Config.Langbot
	scratch := filepath.Join(d.dirs.state, "uploads")
	if err := os.MkdirAll(scratch, 0o700); err != nil {
		return fmt.Errorf("langbot: %w", err)
	}
	d.langbot.server, err = langbot.New(langbot.Options{
		Sessions: d.sessions, DB: filepath.Join(d.dirs.state, "langbot.db"), Scratch: scratch, Health: d.health,
		Prober: attest.New(attest.Options{
			Engine: d.service, Storage: d.sessions.Storage(), Logger: d.log, SkillsUnlimited: c.SkillsSize == 0,
		}),
		Tenant: c.Tenant, Profile: c.Profile, BackendName: c.BackendName,
		ImageNames:    c.ImageNames,
		RefuseNetwork: c.NetworkOn == config.LangbotRefuse, OfferNetwork: c.NetworkOn == config.LangbotBasic || c.NetworkOn == config.LangbotExtended,
		NetworkRules: langbotRules(c.NetworkOn), TimeoutEndsCommand: c.TimeoutEnds == config.LangbotCommand,
		Roots: roots, SkillsDir: c.SkillsDir, SkillsSize: int64(c.SkillsSize), SkillsInodes: c.SkillsInodes,
		Init: c.Init, Logger: d.log,
	})
	if err != nil {
		return fmt.Errorf("langbot: %w", err)
	}
	o := langbotdoor.Options{Token: c.Token, Instance: c.InstanceID, Logger: d.log, MaxConnections: c.MaxConnections,
		Memory: langbotdoor.NewMemory()} // one for both doors
	if d.langbot.listener != nil {
		tcp := o
		if d.langbot.users != nil {
			tcp.Local = d.langbot.users.check
		}
		d.langbot.tcp = langbotdoor.New(d.langbot.server, tcp)
	}
	// A user of the API's socket needs no token and may speak for any instance.
	o.Token, o.Instance, o.PerConnection = "", "", true
	d.langbot.local = langbotdoor.New(d.langbot.server, o)
	return nil
}

// langbotRules narrow what sessions that ask for a network reach.
func langbotRules(network string) *spec.NetworkRules {
	if network != config.LangbotBasic {
		return nil
	}
	return &spec.NetworkRules{Allow: policy.PackageIndexes()}
}

// others returns the doors that the API's server serves, too.
func (l *langbotDoors) others(tenant string) []api.Other {
	return []api.Other{{Prefix: langbotPrefix, Tenant: tenant, Upgrades: true, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.local.ServeHTTP(w, r)
	})}}
}

// health returns what reports why LangBot's protocol is not ready; nil if it has no address.
func (l *langbotDoors) health() func(ctx context.Context) error {
	if l.listener == nil {
		return nil
	}
	return l.server.Unready
}

// shutdown tells all clients that the daemon is stopping, and waits until actions in progress have
// been cancelled. Sessions and processes stay.
func (l *langbotDoors) shutdown(ctx context.Context) error {
	var errs []error
	for _, d := range []*langbotdoor.Door{l.tcp, l.local} {
		if d != nil {
			errs = append(errs, d.Shutdown(ctx))
		}
	}
	return errors.Join(errs...)
}

// close closes what was opened.
func (l *langbotDoors) close() error {
	if l.listener != nil {
		l.listener.Close() // an error if the door has closed it already
	}
	if l.server == nil {
		return nil
	}
	return l.server.Close()
}
