package daemon

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"

	"github.com/boxd/boxd/api"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/linux"
)

// door is a listener. Only a TCP listener can have TLS.
type door struct {
	net.Listener
	tls *tls.Config
}

// openDoors loads the credentials that clients are checked with, and opens the listeners: those of
// the service manager or else the configured socket, and the configured TCP address.
func (d *daemon) openDoors() error {
	c := &d.Config
	config, err := loadTLS(c.TLS.Cert, c.TLS.Key, c.TLS.ClientCA)
	if err != nil {
		return err
	}
	if c.TokensFile != "" {
		if d.auth.Tokens, err = api.LoadTokens(c.TokensFile); err != nil {
			return err
		}
	}
	d.auth.ClientCerts = c.TLS.ClientCA != ""
	authenticated := d.auth.Tokens != nil || d.auth.ClientCerts
	listeners, err := activated(authenticated)
	if err != nil {
		return err
	}
	d.admit(listeners, config)
	gid, err := d.socketGroup()
	if err != nil {
		return err
	}
	users, err := d.newLocalUsers(gid)
	if err != nil {
		return err
	}
	if len(listeners) == 0 {
		owner := gid
		if !d.root && gid == d.account.gid {
			owner = -1 // new files have that group already
		}
		l, err := listenUnix(c.Socket.Path, owner, c.Socket.FileMode())
		if err != nil {
			return err
		}
		d.admit([]net.Listener{l}, nil)
	}
	if c.Listen != "" {
		l, err := listenTCP(c.Listen, authenticated)
		if err != nil {
			return err
		}
		d.admit([]net.Listener{l}, config)
	}
	if !authenticated {
		if err := d.admitLocal(users); err != nil {
			return err
		}
	}
	if err := d.listenPreviews(); err != nil {
		return err
	}
	return d.listenLangbot(users)
}

// admitLocal lets users of this host use TCP listeners without credentials, as operators of the
// default tenant.
func (d *daemon) admitLocal(users *localUsers) error {
	for _, one := range d.doors {
		if _, ok := one.Addr().(*net.TCPAddr); !ok {
			continue
		}
		if err := linux.CanNameTCPClients(one.Listener); err != nil {
			return fmt.Errorf("listen %q: the users of its clients cannot be found: %w: %s, or do without listen", one.Addr(), err, users.remedy)
		}
	}
	d.auth.Local = func(uid int, unknown error) (api.Identity, error) {
		if err := users.check(uid, unknown); err != nil {
			return api.Identity{}, err
		}
		return api.LocalOperator(uid), nil
	}
	return nil
}

// admit takes over listeners.
func (d *daemon) admit(listeners []net.Listener, config *tls.Config) {
	for _, l := range listeners {
		one := door{Listener: l}
		if _, ok := l.Addr().(*net.TCPAddr); ok {
			one.tls = config
		}
		d.doors = append(d.doors, one)
	}
}

// socketGroup returns the group that may use the socket, and sets it in d.auth.
func (d *daemon) socketGroup() (int, error) {
	gid := d.account.gid
	if name := d.Config.Socket.Group; name != "" {
		var err error
		if gid, err = lookupGroup(name); err != nil {
			return 0, err
		}
	}
	d.auth.Groups = []int{gid}
	return gid, nil
}

// loadTLS returns nil if TLS is not configured.
func loadTLS(cert, key, clientCA string) (*tls.Config, error) {
	switch {
	case cert == "" && key == "" && clientCA == "":
		return nil, nil
	case cert == "" || key == "":
		return nil, &engine.FieldError{Field: "tls", Value: spec.Quote(cert + key + clientCA), Rule: "needs both cert and key"}
	}
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	config := &tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12}
	if clientCA == "" {
		return config, nil
	}
	pem, err := os.ReadFile(clientCA)
	if err != nil {
		return nil, fmt.Errorf("tls.client_ca: %w", err)
	}
	config.ClientCAs = x509.NewCertPool()
	if !config.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, &engine.FieldError{Field: "tls.client_ca", Value: spec.Quote(clientCA), Rule: "must hold certificates in PEM form"}
	}
	config.ClientAuth = tls.RequireAndVerifyClientCert
	return config, nil
}
