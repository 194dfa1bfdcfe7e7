package rules

import (
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/engine/spec"
)

// Rules say what a box may reach through the proxy, and how much of it. The zero value
// allows nothing.
//
// An entry of Allow or Deny is a name ("pypi.org"), all names below one
// ("*.pythonhosted.org", which does not include "pythonhosted.org"), an address or a CIDR,
// each with an optional ":PORT" or ":PORT-PORT"; IPv6 with a port stands in brackets. In
// Deny an entry without a port covers all ports. In Allow it covers ports 80, as HTTP, and
// 443, as TLS whose server name is the name asked for; an entry that names a port allows
// any protocol on it. Deny wins over Allow.
type Rules struct {
	Allow []string `json:"allow,omitempty" yaml:"allow,omitempty"`
	Deny  []string `json:"deny,omitempty" yaml:"deny,omitempty"`
	// Public allows every public address and every name that leads to one, on all ports.
	Public bool `json:"public,omitempty" yaml:"public,omitempty"`
	// Upstream is a proxy for all connections: http://HOST:PORT or socks5://HOST:PORT. It
	// resolves the names, so only literal addresses are checked here.
	Upstream      string  `json:"upstream,omitempty" yaml:"upstream,omitempty"`
	UpstreamLogin *Source `json:"upstream_login,omitempty" yaml:"upstream_login,omitempty"` // user:password
	Limits        Limits  `json:"limits,omitzero" yaml:"limits,omitempty"`
	// Only narrows what all of the above allow: a target must match an entry of each list,
	// too. The entries are those of Allow, and open nothing by themselves.
	Only [][]string `json:"-" yaml:"-"`
	// MoreDeny are further lists like Deny, of others than the profile.
	MoreDeny [][]string `json:"-" yaml:"-"`
	// Inject adds secrets to requests.
	Inject []Inject `json:"inject,omitempty" yaml:"inject,omitempty"`
}

// Limits bound what one box uses of the network. 0 connections are [DefaultConnections], a connection
// rate of 0 is [DefaultConnectionRate], an idle time of 0 is [DefaultIdle]; 0 bytes and a bandwidth of 0
// are no limit.
type Limits = spec.NetworkLimits

// Defaults of [Limits].
const (
	DefaultConnections = 256
	// DefaultConnectionRate is above what package managers, crawlers and test suites use, and bounds
	// what a loop of connects costs this host and the servers.
	DefaultConnectionRate = 500
	DefaultIdle           = 15 * time.Minute
	maxConnections        = 16384
	maxConnectionRate     = 100_000
	minBandwidth          = 1 << 10
	maxEntries            = 1000 // of one list
)

// Inject adds a header to plain http requests for one host. The proxy sends them by https
// only; the box never sees the value.
type Inject struct {
	Host      string `json:"host" yaml:"host"`     // a name, with :PORT if https is not at 443
	Header    string `json:"header" yaml:"header"` // replaces the client's header of that name
	ValueFrom Source `json:"value_from" yaml:"value_from"`
}

// Source says where a secret is read, each time it is needed. Exactly one is set.
type Source struct {
	File string `json:"file,omitempty" yaml:"file,omitempty"` // absolute path on the host
	Env  string `json:"env,omitempty" yaml:"env,omitempty"`   // variable of the daemon
}

// Verdict is the answer about a target.
type Verdict struct {
	Allowed bool
	// Rule is the rule that decided, such as `allow "pypi.org"`, "public", "smtp",
	// "address" or "default".
	Rule string
	// Reason continues "NAME is not allowed: "; empty if Allowed.
	Reason string
	// Any protocol is allowed, because a rule names the port; otherwise port 80 carries
	// HTTP and port 443 TLS for this name.
	Any bool
}

// Set is a compiled [Rules]. It does not change and is safe for concurrent use.
type Set struct {
	Rules
	allow, deny []entry
	only        [][]entry
	inject      map[string]injection
	upstream    *url.URL
}

type injection struct {
	port  uint16
	rules []Inject
}

// Validate reports the first value that breaks a rule, as a *[spec.FieldError].
func (r Rules) Validate() error {
	_, err := Compile(r)
	return err
}

// Compile validates r and prepares it for decisions. Errors are those of Validate. It
// keeps the slices of r, which the caller must not change afterwards.
func Compile(r Rules) (*Set, error) {
	s := &Set{Rules: r, inject: map[string]injection{}}
	var err error
	if s.allow, err = parseEntries("allow", r.Allow); err != nil {
		return nil, err
	}
	if s.deny, err = parseEntries("deny", r.Deny); err != nil {
		return nil, err
	}
	for i, list := range r.MoreDeny {
		entries, err := parseEntries(fmt.Sprintf("more_deny[%d]", i), list)
		if err != nil {
			return nil, err
		}
		s.deny = append(s.deny, entries...)
	}
	for i, list := range r.Only {
		entries, err := parseEntries(fmt.Sprintf("only[%d]", i), list)
		if err != nil {
			return nil, err
		}
		s.only = append(s.only, entries)
	}
	if err := s.compileUpstream(); err != nil {
		return nil, err
	}
	l := &s.Limits
	switch {
	case l.Connections < 0 || l.Connections > maxConnections:
		return nil, refuse("limits.connections", fmt.Sprint(l.Connections), "must be from 0 to %d", maxConnections)
	case l.ConnectionRate < 0 || l.ConnectionRate > maxConnectionRate:
		return nil, refuse("limits.connection_rate", fmt.Sprint(l.ConnectionRate), "must be from 0 to %d; 0 means %d", maxConnectionRate, DefaultConnectionRate)
	case l.Bytes < 0:
		return nil, refuse("limits.bytes", spec.SizeValue(int64(l.Bytes)), "must not be negative; 0 means no limit")
	case l.Bandwidth != 0 && l.Bandwidth < minBandwidth:
		return nil, refuse("limits.bandwidth", spec.SizeValue(int64(l.Bandwidth)), "must be at least 1 KiB; 0 means no limit")
	case l.Idle < 0 || l.Idle > 0 && l.Idle.D() < time.Second:
		return nil, refuse("limits.idle", l.Idle.String(), "must be at least 1s; 0 means %s", DefaultIdle)
	}
	if l.Connections == 0 {
		l.Connections = DefaultConnections
	}
	if l.ConnectionRate == 0 {
		l.ConnectionRate = DefaultConnectionRate
	}
	if l.Idle == 0 {
		l.Idle = spec.Duration(DefaultIdle)
	}
	for i, in := range r.Inject {
		if err := s.addInject(fmt.Sprintf("inject[%d]", i), in); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func parseEntries(field string, texts []string) ([]entry, error) {
	if len(texts) > maxEntries {
		return nil, refuse(field, fmt.Sprintf("with %d entries", len(texts)), "must have at most %d", maxEntries)
	}
	var list []entry
	for i, text := range texts {
		e, err := parseEntry(text)
		if err != nil {
			return nil, refuse(fmt.Sprintf("%s[%d]", field, i), spec.Quote(text), "%s", err).Because(err)
		}
		list = append(list, e)
	}
	return list, nil
}

func (s *Set) compileUpstream() error {
	if s.Rules.Upstream == "" {
		if s.UpstreamLogin != nil {
			return refuse("upstream_login", "without upstream", "set upstream as well")
		}
		return nil
	}
	const rule = "must be http://HOST:PORT or socks5://HOST:PORT; a login belongs in upstream_login"
	u, err := url.Parse(s.Rules.Upstream)
	if err != nil || u.Scheme != "http" && u.Scheme != "socks5" || u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		// The text is not repeated: it may hold a password.
		return refuse("upstream", "as given", rule)
	}
	t, err := ParseAuthority(u.Host, 0)
	if err != nil {
		return refuse("upstream", spec.Quote(u.Host), rule).Because(err)
	}
	u.Host, u.Path = t.String(), ""
	s.upstream = u
	if s.UpstreamLogin != nil {
		return s.UpstreamLogin.validate("upstream_login")
	}
	return nil
}

func (s *Set) addInject(field string, in Inject) error {
	t, err := ParseAuthority(in.Host, 443)
	if err != nil || t.Name == "" || t.Port == 80 {
		return refuse(field+".host", spec.Quote(in.Host), "must be a name, with :PORT if https is not at 443").Because(err)
	}
	if !IsToken(in.Header) || IsFraming(in.Header) {
		return refuse(field+".header", spec.Quote(in.Header), "must be a header that does not belong to the connection, such as Authorization")
	}
	if err := in.ValueFrom.validate(field + ".value_from"); err != nil {
		return err
	}
	have, ok := s.inject[t.Name]
	if ok && have.port != t.Port {
		return refuse(field+".host", spec.Quote(in.Host), "has two ports; one host has one")
	}
	if slices.ContainsFunc(have.rules, func(o Inject) bool { return strings.EqualFold(o.Header, in.Header) }) {
		return refuse(field+".header", spec.Quote(in.Header), "is given twice for %s", t.Name)
	}
	s.inject[t.Name] = injection{t.Port, append(have.rules, in)}
	return nil
}

func (v Source) validate(field string) error {
	switch {
	case (v.File == "") == (v.Env == ""):
		return refuse(field, "", "must have exactly one of file and env")
	case v.File != "" && !filepath.IsAbs(v.File):
		return refuse(field+".file", spec.QuotePath(v.File), "must be an absolute path")
	case strings.ContainsAny(v.Env, "=\x00"):
		return refuse(field+".env", spec.Quote(v.Env), "must be the name of a variable")
	}
	return nil
}

// IsToken reports whether s is a token of RFC 9110, section 5.6.2: a valid header name.
func IsToken(s string) bool {
	for _, c := range []byte(s) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// IsFraming reports whether a header belongs to one connection or frames the message, so
// that it is neither forwarded nor injected.
func IsFraming(header string) bool {
	switch strings.ToLower(header) {
	case "connection", "proxy-connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-authentication-info",
		"te", "trailer", "transfer-encoding", "upgrade", "host", "content-length", "expect", "http2-settings":
		return true
	}
	return false
}

// UpstreamURL returns the upstream proxy without its login, or nil. The caller must not
// change it.
func (s *Set) UpstreamURL() *url.URL { return s.upstream }

// LimitsNames reports whether s allows some public names only.
func (s *Set) LimitsNames() bool { return !s.Public || len(s.only) > 0 }

// Injects returns the rules for plain http requests to name at port 80 or at the rule's
// own port, and the port for https.
func (s *Set) Injects(t Target) ([]Inject, uint16) {
	in, ok := s.inject[t.Name]
	if !ok || t.Port != 80 && t.Port != in.port {
		return nil, 0
	}
	return in.rules, in.port
}

func refuse(field, value, rule string, args ...any) *spec.FieldError {
	return &spec.FieldError{Field: field, Value: value, Rule: fmt.Sprintf(rule, args...)}
}

// Decide decides about a target before its name is resolved. For an address it decides
// finally. SMTP is denied whatever the rules say; then come Deny, Allow and Public; what
// no rule allows is denied.
func (s *Set) Decide(t Target, h Surroundings) Verdict {
	switch t.Port {
	case 25, 465, 587:
		return Verdict{Rule: "smtp", Reason: "SMTP is always denied"}
	}
	if t.Name == "" {
		return s.Address(netip.AddrPortFrom(t.Addr, t.Port), false, h)
	}
	if v := s.DeniedName(t); v != nil {
		return *v
	}
	return s.narrow(s.allowedName(t), func(e *entry) bool { return e.hasName(t.Name) && e.hasPort(t.Port, false) })
}

// allowedName decides about a name by Allow and Public.
func (s *Set) allowedName(t Target) Verdict {
	var allowed Verdict
	for i := range s.allow {
		if e := &s.allow[i]; e.hasName(t.Name) && e.hasPort(t.Port, false) {
			if !allowed.Allowed || e.lo != 0 {
				allowed = allow(e)
			}
			if allowed.Any {
				break
			}
		}
	}
	switch {
	case allowed.Allowed:
		return allowed
	case t.Name == "localhost" || strings.HasSuffix(t.Name, ".localhost"):
		return Verdict{Rule: "default", Reason: itself}
	case !s.Public:
		return noRule
	case isLocal(t.Name):
		return Verdict{Rule: "default", Reason: "the name is local; only an entry of its own allows it"}
	}
	return public(t.Port)
}

// narrow returns v unless a list of Only has no entry that matches.
func (s *Set) narrow(v Verdict, matches func(*entry) bool) Verdict {
	if !v.Allowed {
		return v
	}
	for _, list := range s.only {
		found, namesPort := false, false
		for i := range list {
			if matches(&list[i]) {
				found, namesPort = true, namesPort || list[i].lo != 0
			}
		}
		if !found {
			return Verdict{Rule: "only", Reason: "the profile allows it, and the session's own rules do not"}
		}
		v.Any = v.Any && namesPort
	}
	return v
}

// DeniedName returns the verdict of the first entry of Deny that covers the name and port
// of t, nil if there is none.
func (s *Set) DeniedName(t Target) *Verdict {
	for i := range s.deny {
		if e := &s.deny[i]; e.hasName(t.Name) && e.hasPort(t.Port, true) {
			v := deny(e)
			return &v
		}
	}
	return nil
}

// Address decides about the address that is dialled. byName says that a name, which
// Decide allowed, led to it; such an address needs no rule of its own if it is public.
//
// An entry opens special addresses, such as private ones, only if it lies within their
// range: 10.1.0.0/16 opens private addresses, 0.0.0.0/0 does not.
//
// A NAT64 address (64:ff9b::/96) is decided as the IPv4 address inside: IPv4 entries cover it, and no
// other entry opens it if that address is special. Entries for the NAT64 address itself count, too.
func (s *Set) Address(ap netip.AddrPort, byName bool, h Surroundings) Verdict {
	v := Verdict{Allowed: true}
	if inner, ok := Embedded(ap.Addr()); ok {
		v = s.address(netip.AddrPortFrom(inner, ap.Port()), true, h)
	}
	if v.Allowed {
		v = s.address(ap, byName, h)
	}
	if byName { // Decide has narrowed the name
		return v
	}
	return s.narrow(v, func(e *entry) bool { return e.hasAddr(ap.Addr().Unmap()) && e.hasPort(ap.Port(), false) })
}

// address is Address by Deny, Allow and Public, for the address as it stands.
func (s *Set) address(ap netip.AddrPort, byName bool, h Surroundings) Verdict {
	addr, port := ap.Addr().Unmap(), ap.Port()
	if addr.Zone() != "" || !addr.IsValid() {
		return Verdict{Rule: "address", Reason: "an address with a zone is local"}
	}
	own, known := h.own()
	if !known {
		return Verdict{Rule: "address", Reason: "boxd cannot read the addresses of its host"}
	}
	if h.IsListener(netip.AddrPortFrom(addr, port)) {
		return Verdict{Rule: "address", Reason: fmt.Sprintf("%s is a listener of boxd", ap)}
	}
	for i := range s.deny {
		if e := &s.deny[i]; e.hasAddr(addr) && e.hasPort(port, true) {
			return deny(e)
		}
	}
	special := classOf(addr, own)
	var v Verdict
	for i := range s.allow {
		e := &s.allow[i]
		if !e.hasAddr(addr) || !e.hasPort(port, false) || special != nil && !within(e.prefix, special.prefix) {
			continue
		}
		if !v.Allowed || e.lo != 0 {
			v = allow(e)
		}
		if v.Any {
			break
		}
	}
	switch {
	case v.Allowed:
		return v
	case special != nil:
		return Verdict{Rule: "address", Reason: fmt.Sprintf("%s is %s", addr, special.what)}
	case byName:
		return Verdict{Allowed: true, Rule: "name"}
	case s.Public:
		return public(port)
	}
	return noRule
}

func within(inner, outer netip.Prefix) bool {
	return inner.Bits() >= outer.Bits() && outer.Contains(inner.Addr())
}

var noRule = Verdict{Rule: "default", Reason: "no rule allows it"}

func allow(e *entry) Verdict {
	return Verdict{Allowed: true, Rule: "allow " + spec.Quote(e.text), Any: e.lo != 0}
}

func deny(e *entry) Verdict {
	rule := "deny " + spec.Quote(e.text)
	return Verdict{Rule: rule, Reason: "the rule " + rule + " forbids it"}
}

func public(port uint16) Verdict {
	return Verdict{Allowed: true, Rule: "public", Any: port != 80 && port != 443}
}

// isLocal reports names that resolvers answer from the local network (RFC 6761, 6762,
// 8375, 9476), and names without a dot.
func isLocal(name string) bool {
	if !strings.Contains(name, ".") {
		return true
	}
	for _, suffix := range []string{".localhost", ".local", ".internal", ".home.arpa", ".localdomain", ".lan", ".intranet", ".corp", ".home"} {
		if strings.HasSuffix(name, suffix) {
			return true
		}
	}
	return false
}
