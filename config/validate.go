package config

import (
	"cmp"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// Validate derives the keys that follow from others and checks everything. The first broken
// rule is a *[engine.FieldError] with the key as its Field. Calling it again changes
// nothing.
func (c *Config) Validate() error {
	for _, check := range []func() error{
		c.derive, c.validateSocket, c.validateListen, c.validatePublish, c.validateWords, c.validateNumbers, c.validateImages, c.validatePreview, c.validateWebhooks, c.validateLangbot, c.validatePolicy,
	} {
		if err := check(); err != nil {
			return err
		}
	}
	return nil
}

// derive fills in the paths that follow from the state directory. With a state directory
// other than the default, all of them are inside it, so that a second daemon shares nothing
// with the first.
func (c *Config) derive() error {
	c.StateDir = cmp.Or(c.StateDir, DefaultStateDir)
	runtimeDir, socketDir := DefaultRuntimeDir, DefaultRuntimeDir
	if c.StateDir != DefaultStateDir {
		runtimeDir, socketDir = path.Join(c.StateDir, "run"), c.StateDir
	}
	c.RuntimeDir = cmp.Or(c.RuntimeDir, runtimeDir)
	c.Socket.Path = cmp.Or(c.Socket.Path, path.Join(socketDir, socketName))
	c.Audit.File = cmp.Or(c.Audit.File, path.Join(c.StateDir, auditName))
	for _, p := range []struct {
		field, value string
		optional     bool
	}{
		{"state_dir", c.StateDir, false},
		{"runtime_dir", c.RuntimeDir, false},
		{"socket.path", c.Socket.Path, false},
		{"audit.file", c.Audit.File, false},
		{"tls.cert", c.TLS.Cert, true},
		{"tls.key", c.TLS.Key, true},
		{"tls.client_ca", c.TLS.ClientCA, true},
		{"preview.tls.cert", c.Preview.TLS.Cert, true},
		{"preview.tls.key", c.Preview.TLS.Key, true},
		{"tokens_file", c.TokensFile, true},
		{"init_path", c.InitPath, true},
	} {
		if p.value == "" && p.optional {
			continue
		}
		if err := validatePath(p.field, p.value); err != nil {
			return err
		}
	}
	for _, p := range c.Programs.all() {
		if p.isPath && *p.value != "" {
			if err := validatePath(p.key, *p.value); err != nil {
				return err
			}
		}
	}
	return nil
}

func validatePath(field, p string) error {
	isControl := func(r rune) bool { return r < 0x20 || r == 0x7f }
	switch {
	case !path.IsAbs(p):
		return refuse(field, spec.Quote(p), "must be an absolute path")
	case strings.ContainsFunc(p, isControl):
		return refuse(field, spec.Quote(p), "must not contain control characters")
	case path.Clean(p) != p:
		return refuse(field, spec.Quote(p), fmt.Sprintf("must be written as %q", path.Clean(p)))
	case p == "/":
		return refuse(field, spec.Quote(p), "must not be the root directory")
	}
	return nil
}

func refuse(field, value, rule string) error {
	return &engine.FieldError{Field: field, Value: value, Rule: rule}
}

// maxSocketPath is the size of sun_path in <linux/un.h>, without its NUL.
const maxSocketPath = 107

func (c *Config) validateSocket() error {
	if len(c.Socket.Path) > maxSocketPath {
		return refuse("socket.path", spec.Quote(c.Socket.Path), fmt.Sprintf("must be at most %d bytes long: that is what a Unix socket's address holds", maxSocketPath))
	}
	mode, err := strconv.ParseUint(c.Socket.Mode, 8, 32)
	if err != nil || mode > 0o777 {
		return refuse("socket.mode", spec.Quote(c.Socket.Mode), "must be an octal mode such as 0660")
	}
	if mode&0o002 != 0 {
		return refuse("socket.mode", spec.Quote(c.Socket.Mode), "must not let everybody write, which is to connect: name a group with socket.group")
	}
	return nil
}

// FileMode returns Mode as a number. It is 0 before Validate has accepted it.
func (s Socket) FileMode() fs.FileMode {
	mode, err := strconv.ParseUint(s.Mode, 8, 32)
	if err != nil {
		return 0
	}
	return fs.FileMode(mode).Perm()
}

// validateListen refuses an address at which strangers could use the daemon without
// authentication.
func (c *Config) validateListen() error {
	t := c.TLS
	switch {
	case (t.Cert == "") != (t.Key == ""):
		return refuse("tls", spec.Quote(t.Cert+t.Key), "needs both cert and key")
	case t.ClientCA != "" && t.Cert == "":
		return refuse("tls.client_ca", spec.Quote(t.ClientCA), "needs tls.cert and tls.key")
	case c.Listen == "" && t.Cert != "":
		return refuse("tls.cert", spec.Quote(t.Cert), "has no use without listen")
	case c.Listen == "":
		return nil
	}
	host, _, err := splitAddress("listen", c.Listen, "127.0.0.1:8420 or [::1]:8420")
	if err != nil {
		return err
	}
	if !isLoopback(host) && c.TokensFile == "" && t.ClientCA == "" {
		return refuse("listen", spec.Quote(c.Listen), "is open to other hosts, which needs authentication: "+
			"set tokens_file or tls.client_ca, or listen on 127.0.0.1 or [::1]")
	}
	return nil
}

// validatePublish sets the pool of ports that the policy gives out.
func (c *Config) validatePublish() error {
	address, err := netip.ParseAddr(c.Publish.Address)
	if err != nil || address.Zone() != "" {
		return refuse("publish.address", spec.Quote(c.Publish.Address), "must be an address of this host, such as 127.0.0.1, ::1, or 0.0.0.0 for all of them")
	}
	if c.Publish.Ports == "" {
		c.Policy.Publish = policy.PortPool{}
		return nil
	}
	from, to, _ := strings.Cut(c.Publish.Ports, "-")
	first, err1 := strconv.ParseUint(from, 10, 16)
	last, err2 := strconv.ParseUint(to, 10, 16)
	if err1 != nil || err2 != nil || first < 1024 || last < first { // the daemon has no right to ports below 1024
		return refuse("publish.ports", spec.Quote(c.Publish.Ports), "must be FIRST-LAST, ports of 1024 to 65535, such as 20000-20999")
	}
	c.Policy.Publish = policy.PortPool{First: int(first), Last: int(last), Address: address.Unmap()}
	for _, own := range []struct{ key, address string }{{"listen", c.Listen}, {"preview.listen", c.Preview.Listen}, {"langbot.listen", c.Langbot.Listen}} {
		_, port, _ := net.SplitHostPort(own.address)
		if n, err := strconv.Atoi(port); err == nil && c.Policy.Publish.Contains(n) {
			return refuse("publish.ports", spec.Quote(c.Publish.Ports), "must not contain the port of "+own.key+", "+port)
		}
	}
	return nil
}

// splitAddress splits an address of field; suchAs is an example of one.
func splitAddress(field, address, suchAs string) (host, port string, err error) {
	host, port, err = net.SplitHostPort(address)
	if err != nil {
		return "", "", refuse(field, spec.Quote(address), "must be HOST:PORT, such as "+suchAs)
	}
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || strconv.FormatUint(n, 10) != port {
		return "", "", refuse(field, spec.Quote(address), "must end in a port of 0 to 65535")
	}
	return host, port, nil
}

// isLoopback accepts only addresses and the one name that RFC 6761, section 6.3, reserves:
// any other name could be made to point elsewhere.
func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || (ip != nil && ip.IsLoopback())
}

var nameSyntax = onUse(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,31}\$?$`)

// onUse compiles expr when it is first used, so that no other start of a program pays for it.
func onUse(expr string) func() *regexp.Regexp {
	return sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expr) })
}

// maxMetricLabels bounds HTTP.MetricLabels: each multiplies the number of series.
const maxMetricLabels = 4

func (c *Config) validateWords() error {
	for i, name := range c.ListenUsers {
		if !nameSyntax().MatchString(name) {
			return refuse(fmt.Sprintf("listen_users[%d]", i), spec.Quote(name), "must be the name or number of a user")
		}
	}
	if c.HTTP.Scope != "" {
		if err := policy.ValidateScope(c.HTTP.Scope); err != nil {
			return refuse("http.scope", spec.Quote(c.HTTP.Scope), err.(*spec.FieldError).Rule)
		}
	}
	if c.MCP.Scope != "" {
		if err := policy.ValidateScope(c.MCP.Scope); err != nil {
			return refuse("mcp.scope", spec.Quote(c.MCP.Scope), err.(*spec.FieldError).Rule)
		}
	}
	for name, server := range c.MCPServers {
		if err := server.validate("mcp_servers."+name, name); err != nil {
			return err
		}
	}
	for i, label := range c.HTTP.MetricLabels {
		field := fmt.Sprintf("http.metric_labels[%d]", i)
		if err := (spec.Labels{label: ""}).Validate(field); err != nil {
			return refuse(field, spec.Quote(label), "must be the key of a label: 1 to 63 of a-z A-Z 0-9 _ - . /")
		}
		if i == maxMetricLabels {
			return refuse(field, spec.Quote(label), fmt.Sprintf("must not be there: metrics tell at most %d labels apart", maxMetricLabels))
		}
		for _, other := range c.HTTP.MetricLabels[:i] {
			if spec.MetricLabel(other) == spec.MetricLabel(label) {
				return refuse(field, spec.Quote(label), "must not have the same name in metrics, "+spec.MetricLabel(label)+", as "+spec.Quote(other))
			}
		}
	}
	if c.Network != NetworkOff && c.Network != NetworkProxy {
		return refuse("network", spec.Quote(c.Network), `must be "off" or "proxy"`)
	}
	switch {
	case c.User != "" && !nameSyntax().MatchString(c.User):
		return refuse("user", spec.Quote(c.User), "must be the name or number of a user")
	case c.Socket.Group != "" && !nameSyntax().MatchString(c.Socket.Group):
		return refuse("socket.group", spec.Quote(c.Socket.Group), "must be the name or number of a group")
	case c.Log.Format != "text" && c.Log.Format != "json":
		return refuse("log.format", spec.Quote(c.Log.Format), `must be "text" or "json"`)
	}
	switch c.Log.Level {
	case "debug", "info", "warn", "error":
		return nil
	}
	return refuse("log.level", spec.Quote(c.Log.Level), `must be "debug", "info", "warn" or "error"`)
}
