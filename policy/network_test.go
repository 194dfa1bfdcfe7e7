package policy

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/engine/spec"
)

// TestNetworkRules: what sessions reach by their profile, their tenant and their own rules.
func TestNetworkRules(t *testing.T) {
	list := func(s ...string) *[]string { return &s }
	p := newPolicy(t, Config{NetworkAvailable: true,
		Tenants: map[string]Tenant{"few": {NetworkRules: TenantNetwork{Allow: []string{"*.example", "pypi.org"}, Deny: []string{"bad.example"}}}},
		Profiles: map[string]ProfileConfig{
			"lab":  {Extends: "network_basic", NetworkRules: NetworkConfig{Allow: list("a.example", "10.0.0.0/8:5432"), Limits: NetworkLimits{Connections: ptr(3)}}},
			"open": {Extends: "lab", NetworkRules: NetworkConfig{Public: ptr(true)}},
		}})
	on := true
	for _, c := range []struct {
		tenant, profile string
		own             *spec.NetworkRules
		target          string
		want            bool
	}{
		{"t", "default", nil, "x.example:443", true}, {"t", "default", nil, "10.0.0.1:443", false}, {"t", "default", nil, "x.example:25", false},
		{"t", "network_extended", nil, "x.example:22", true}, {"t", "network_extended", nil, "169.254.169.254:80", false},
		{"t", "network_basic", nil, "pypi.org:443", true}, {"t", "network_basic", nil, "x.example:443", false}, {"t", "network_basic", nil, "github.com:443", false},
		{"t", "lab", nil, "a.example:443", true}, {"t", "lab", nil, "pypi.org:443", false}, {"t", "lab", nil, "10.1.1.1:5432", true},
		{"t", "open", nil, "a.example:443", true}, {"t", "open", nil, "b.example:443", true}, {"t", "open", nil, "10.1.1.1:5432", true},
		{"few", "default", nil, "x.example:443", true}, {"few", "default", nil, "bad.example:443", false}, {"few", "default", nil, "x.test:443", false}, {"few", "lab", nil, "10.1.1.1:5432", false},
		{"few", "network_basic", nil, "pypi.org:443", true}, {"few", "network_basic", nil, "crates.io:443", false},
		{"t", "default", &spec.NetworkRules{Allow: []string{"x.example"}}, "x.example:443", true}, {"t", "default", &spec.NetworkRules{Allow: []string{"x.example"}}, "y.example:443", false},
		{"t", "default", &spec.NetworkRules{Allow: []string{"10.0.0.0/8"}}, "10.0.0.1:80", false}, {"t", "default", &spec.NetworkRules{Deny: []string{"x.example"}}, "x.example:443", false},
		{"few", "default", &spec.NetworkRules{Allow: []string{"x.test"}}, "x.test:443", false},
	} {
		r, err := p.Resolve(c.tenant, Request{Wishes: spec.Wishes{Profile: c.profile, NetworkRules: c.own, LiveWishes: spec.LiveWishes{Network: &on}}})
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		all, err := p.NetworkRules(c.tenant, r)
		if err != nil {
			t.Fatal(err)
		}
		set, err := rules.Compile(all)
		if err != nil {
			t.Fatal(err)
		}
		target, err := rules.ParseAuthority(c.target, 0)
		if err != nil {
			t.Fatal(err)
		}
		if v := set.Decide(target, rules.Surroundings{Own: func() []netip.Addr { return []netip.Addr{} }}); v.Allowed != c.want {
			t.Errorf("%s, %s, %+v: %s: %+v", c.tenant, c.profile, c.own, c.target, v)
		}
		if c.profile == "lab" && set.Limits.Connections != 3 {
			t.Errorf("limits %+v", set.Limits)
		}
	}
}

// TestNetworkElse: a wish for a network that is dropped, with a warning, where there can be none.
func TestNetworkElse(t *testing.T) {
	c := Config{NetworkAvailable: true, Profiles: map[string]ProfileConfig{"off": {AllowNetwork: ptr(false)}, "locked": {Locked: &[]string{"network"}}}}
	p := newPolicy(t, c)
	c.NetworkAvailable = false
	none := newPolicy(t, c)
	own := &spec.NetworkRules{Allow: []string{"pypi.org"}}
	for _, x := range []struct {
		p       *Policy
		profile string
		want    bool
	}{{p, "default", true}, {p, "network_basic", true}, {p, "off", false}, {p, "locked", false}, {p, "offline_readonly", false}, {none, "default", false}} {
		r, err := x.p.Resolve("t", Request{NetworkElse: "no network", Wishes: spec.Wishes{Profile: x.profile, NetworkRules: own}})
		if err != nil || r.Network != x.want || x.want == slices.Contains(r.Warnings, "no network") || x.want != r.NetworkRules.Equal(own) {
			t.Errorf("%s: network %t, rules %+v, warnings %q, %v", x.profile, r.Network, r.NetworkRules, r.Warnings, err)
		}
	}
}

// TestNetworkRefused: what is wrong has the name of its key.
func TestNetworkRefused(t *testing.T) {
	list := func(s ...string) *[]string { return &s }
	for field, c := range map[string]Config{
		"profiles.x.network_rules.allow[1]":           {Profiles: map[string]ProfileConfig{"x": {NetworkRules: NetworkConfig{Allow: list("a.example", "*")}}}},
		"profiles.x.network_rules.upstream":           {Profiles: map[string]ProfileConfig{"x": {NetworkRules: NetworkConfig{Upstream: ptr("ftp://x")}}}},
		"profiles.x.network_rules.limits.connections": {Profiles: map[string]ProfileConfig{"x": {NetworkRules: NetworkConfig{Limits: NetworkLimits{Connections: ptr(-1)}}}}},
		"tenants.t.network_rules.deny[0]":             {Tenants: map[string]Tenant{"t": {NetworkRules: TenantNetwork{Deny: []string{"x y"}}}}},
	} {
		_, err := New(c)
		if bad, ok := errors.AsType[*spec.FieldError](err); !ok || bad.Field != field {
			t.Errorf("%s: %v", field, err)
		}
	}
	p := newPolicy(t, Config{NetworkAvailable: true})
	for _, own := range []spec.NetworkRules{{Allow: []string{"*"}}, {Deny: []string{"x/y"}}, {Deny: slices.Repeat([]string{"a.example"}, 1001)}} {
		_, err := p.Resolve("t", Request{Wishes: spec.Wishes{Profile: "network_extended", NetworkRules: &own}})
		if bad, ok := errors.AsType[*spec.FieldError](err); !ok || !strings.HasPrefix(bad.Field, "network_rules.") {
			t.Errorf("%v", err)
		}
	}
}

// TestAllowEndsPublic: a list of what is allowed replaces public addresses in every built-in profile
// that reaches them, unless public is set beside it, or by a profile on top.
func TestAllowEndsPublic(t *testing.T) {
	list := &[]string{"a.example"}
	for name, base := range builtin(0) {
		if !base.AllowNetwork {
			continue
		}
		p := newPolicy(t, Config{NetworkAvailable: true, Profiles: map[string]ProfileConfig{
			"plain":  {Extends: name},
			"narrow": {Extends: name, NetworkRules: NetworkConfig{Allow: list}},
			"none":   {Extends: name, NetworkRules: NetworkConfig{Allow: &[]string{}}},
			"both":   {Extends: name, NetworkRules: NetworkConfig{Allow: list, Public: ptr(true)}},
			"again":  {Extends: "narrow", NetworkRules: NetworkConfig{Public: ptr(true)}},
			"deny":   {Extends: name, NetworkRules: NetworkConfig{Deny: list}},
		}})
		public := base.NetworkRules.Public
		for profile, want := range map[string]bool{"plain": public, "narrow": false, "none": false, "both": true, "again": true, "deny": public} {
			on := true
			r, err := p.Resolve("t", Request{Wishes: spec.Wishes{Profile: profile, LiveWishes: spec.LiveWishes{Network: &on}}})
			if err != nil {
				t.Fatalf("%s on %s: %v", profile, name, err)
			}
			all, err := p.NetworkRules("t", r)
			if err != nil || all.Public != want {
				t.Errorf("%s on %s: public %t, %v", profile, name, all.Public, err)
			}
		}
	}
}

// TestManyDenied: profile, tenant and session may each deny as many as one list holds.
func TestManyDenied(t *testing.T) {
	many := func(who string) (list []string) {
		for i := range 1000 {
			list = append(list, fmt.Sprintf("%s%d.example", who, i))
		}
		return list
	}
	profile := many("p")
	p := newPolicy(t, Config{NetworkAvailable: true,
		Tenants:  map[string]Tenant{"t": {NetworkRules: TenantNetwork{Deny: many("t")}}},
		Profiles: map[string]ProfileConfig{"x": {NetworkRules: NetworkConfig{Deny: &profile}}}})
	on := true
	r, err := p.Resolve("t", Request{Wishes: spec.Wishes{Profile: "x", NetworkRules: &spec.NetworkRules{Deny: many("s")}, LiveWishes: spec.LiveWishes{Network: &on}}})
	if err != nil {
		t.Fatal(err)
	}
	all, err := p.NetworkRules("t", r)
	if err != nil {
		t.Fatal(err)
	}
	set, err := rules.Compile(all)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{"p999.example": false, "t999.example": false, "s999.example": false, "other.example": true} {
		if v := set.Decide(rules.Target{Name: name, Port: 443}, rules.Surroundings{}); v.Allowed != want {
			t.Errorf("%s: %+v", name, v)
		}
	}
}

// TestNetworkLimits: each of profile, tenant and request bounds, and a request that asks for more is
// refused by name. After a change of the profile the lowest counts, without a refusal.
func TestNetworkLimits(t *testing.T) {
	profiles := map[string]ProfileConfig{
		"lab":  {NetworkRules: NetworkConfig{Limits: NetworkLimits{Connections: ptr(10), Bytes: ptr(spec.Size(1000)), Bandwidth: ptr(spec.Size(1 << 20)), Idle: ptr(seconds(60))}}},
		"free": {NetworkRules: NetworkConfig{Limits: NetworkLimits{Connections: ptr(0), Bytes: ptr(spec.Size(0)), Bandwidth: ptr(spec.Size(0)), Idle: ptr(seconds(0))}}},
	}
	tenants := map[string]Tenant{"low": {NetworkRules: TenantNetwork{Limits: spec.NetworkLimits{Connections: 5, Bytes: 500, Idle: seconds(90)}}}}
	p := newPolicy(t, Config{NetworkAvailable: true, Profiles: profiles, Tenants: tenants})
	for _, c := range []struct {
		tenant, profile string
		asked, want     spec.NetworkLimits
		refused         string
	}{
		{"t", "default", spec.NetworkLimits{}, defaultLimits, ""}, {"t", "network_basic", spec.NetworkLimits{}, defaultLimits, ""}, {"t", "network_extended", spec.NetworkLimits{}, defaultLimits, ""},
		{"t", "lab", spec.NetworkLimits{}, spec.NetworkLimits{Connections: 10, Bytes: 1000, Bandwidth: 1 << 20, Idle: seconds(60)}, ""},
		{"low", "lab", spec.NetworkLimits{}, spec.NetworkLimits{Connections: 5, Bytes: 500, Bandwidth: 1 << 20, Idle: seconds(60)}, ""},
		{"t", "free", spec.NetworkLimits{}, spec.NetworkLimits{Connections: 256, Idle: seconds(900)}, ""},
		{"low", "free", spec.NetworkLimits{}, spec.NetworkLimits{Connections: 5, Bytes: 500, Idle: seconds(90)}, ""},
		{"low", "lab", spec.NetworkLimits{Connections: 1, Bytes: 1, Bandwidth: 1024, Idle: seconds(1)}, spec.NetworkLimits{Connections: 1, Bytes: 1, Bandwidth: 1024, Idle: seconds(1)}, ""},
		{"t", "lab", spec.NetworkLimits{Connections: 10, Bytes: 1000}, spec.NetworkLimits{Connections: 10, Bytes: 1000, Bandwidth: 1 << 20, Idle: seconds(60)}, ""},
		{"t", "free", spec.NetworkLimits{Bytes: 1 << 50}, spec.NetworkLimits{Connections: 256, Bytes: 1 << 50, Idle: seconds(900)}, ""},
		{"t", "lab", spec.NetworkLimits{Connections: 11}, spec.NetworkLimits{}, "connections"}, {"t", "lab", spec.NetworkLimits{Bytes: 1001}, spec.NetworkLimits{}, "bytes"},
		{"t", "lab", spec.NetworkLimits{Bandwidth: 1<<20 + 1}, spec.NetworkLimits{}, "bandwidth"}, {"t", "lab", spec.NetworkLimits{Idle: seconds(61)}, spec.NetworkLimits{}, "idle"},
		{"t", "lab", spec.NetworkLimits{ConnectionRate: 20}, spec.NetworkLimits{Connections: 10, ConnectionRate: 20, Bytes: 1000, Bandwidth: 1 << 20, Idle: seconds(60)}, ""},
		{"t", "lab", spec.NetworkLimits{ConnectionRate: 501}, spec.NetworkLimits{}, "connection_rate"}, {"t", "lab", spec.NetworkLimits{ConnectionRate: -1}, spec.NetworkLimits{}, "connection_rate"},
		{"low", "lab", spec.NetworkLimits{Connections: 6}, spec.NetworkLimits{}, "connections"}, {"t", "free", spec.NetworkLimits{Connections: 257}, spec.NetworkLimits{}, "connections"}, {"t", "free", spec.NetworkLimits{Idle: seconds(901)}, spec.NetworkLimits{}, "idle"},
		{"t", "lab", spec.NetworkLimits{Connections: -1}, spec.NetworkLimits{}, "connections"}, {"t", "lab", spec.NetworkLimits{Bytes: -1}, spec.NetworkLimits{}, "bytes"},
		{"t", "lab", spec.NetworkLimits{Bandwidth: 1}, spec.NetworkLimits{}, "bandwidth"}, {"t", "lab", spec.NetworkLimits{Idle: 1}, spec.NetworkLimits{}, "idle"},
	} {
		r, err := p.Resolve(c.tenant, Request{Wishes: spec.Wishes{Profile: c.profile, NetworkRules: &spec.NetworkRules{Limits: c.asked}, LiveWishes: spec.LiveWishes{Network: ptr(true)}}})
		if c.refused != "" {
			if bad, ok := errors.AsType[*spec.FieldError](err); !ok || bad.Field != "network_rules.limits."+c.refused {
				t.Errorf("%s, %s, %+v: %v", c.tenant, c.profile, c.asked, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%+v: %v", c, err)
			continue
		}
		c.want.ConnectionRate = cmp.Or(c.want.ConnectionRate, rules.DefaultConnectionRate)
		if got, err := p.NetworkRules(c.tenant, r); err != nil || got.Limits != c.want {
			t.Errorf("%s, %s, %+v: %+v, %v", c.tenant, c.profile, c.asked, got.Limits, err)
		}
	}
	r, err := p.Resolve("t", Request{Wishes: spec.Wishes{Profile: "free", NetworkRules: &spec.NetworkRules{Limits: spec.NetworkLimits{Bytes: 5000}}, LiveWishes: spec.LiveWishes{Network: ptr(true)}}})
	if err != nil {
		t.Fatal(err)
	}
	r.Profile = "lab" // as if "free" had become like it
	if got, err := p.NetworkRules("t", r); err != nil || got.Limits.Bytes != 1000 {
		t.Errorf("%+v, %v", got.Limits, err)
	}
}

// TestNetworkInject: secrets are for hosts that the rules reach, by https; those of a tenant win.
func TestNetworkInject(t *testing.T) {
	entry := func(host, header, file string) rules.Inject {
		return rules.Inject{Host: host, Header: header, ValueFrom: rules.Source{File: file}}
	}
	with := func(list ...rules.Inject) NetworkConfig {
		return NetworkConfig{Public: ptr(false), Allow: &[]string{"api.example", "b.example:8443"}, Inject: &list}
	}
	of := func(list ...rules.Inject) map[string]Tenant {
		return map[string]Tenant{"t": {Profiles: []string{"lab"}, NetworkRules: TenantNetwork{Deny: []string{"denied.example"}, Inject: list}}}
	}
	for name, c := range map[string]struct {
		c     Config
		field string // of the error
	}{
		"a profile's":         {Config{Profiles: map[string]ProfileConfig{"lab": {NetworkRules: with(entry("api.example", "Authorization", "/a"), entry("b.example:8443", "X-Key", "/b"))}}}, ""},
		"of public addresses": {Config{Profiles: map[string]ProfileConfig{"lab": {NetworkRules: NetworkConfig{Inject: &[]rules.Inject{entry("x.example", "X-Key", "/a")}}}}}, ""},
		"a tenant's":          {Config{Profiles: map[string]ProfileConfig{"lab": {NetworkRules: with()}}, Tenants: of(entry("api.example", "X-Key", "/t"))}, ""},
		"not reached":         {Config{Profiles: map[string]ProfileConfig{"lab": {NetworkRules: with(entry("x.example", "X-Key", "/a"))}}}, "profiles.lab.network_rules.inject[0].host"},
		"another port":        {Config{Profiles: map[string]ProfileConfig{"lab": {NetworkRules: with(entry("api.example", "A", "/a"), entry("b.example", "X-Key", "/a"))}}}, "profiles.lab.network_rules.inject[1].host"},
		"port 80":             {Config{Profiles: map[string]ProfileConfig{"lab": {NetworkRules: with(entry("api.example:80", "X-Key", "/a"))}}}, "profiles.lab.network_rules.inject[0].host"},
		"an address":          {Config{Profiles: map[string]ProfileConfig{"lab": {NetworkRules: with(entry("192.0.2.1", "X-Key", "/a"))}}}, "profiles.lab.network_rules.inject[0].host"},
		"a bad header":        {Config{Profiles: map[string]ProfileConfig{"lab": {NetworkRules: with(entry("api.example", "Host", "/a"))}}}, "profiles.lab.network_rules.inject[0].header"},
		"a relative file":     {Config{Profiles: map[string]ProfileConfig{"lab": {NetworkRules: with(entry("api.example", "X-Key", "a"))}}}, "profiles.lab.network_rules.inject[0].value_from.file"},
		"no source":           {Config{Profiles: map[string]ProfileConfig{"lab": {NetworkRules: with(entry("api.example", "X-Key", ""))}}}, "profiles.lab.network_rules.inject[0].value_from"},
		"a tenant's, denied":  {Config{Profiles: map[string]ProfileConfig{"lab": {}}, Tenants: of(entry("x.example", "X-Key", "/t"), entry("denied.example", "X-Key", "/t"))}, "tenants.t.network_rules.inject[1].host"},
		"another profile's":   {Config{Profiles: map[string]ProfileConfig{"lab": {NetworkRules: with()}}, Tenants: of(entry("x.example", "X-Key", "/t"))}, "tenants.t.network_rules.inject[0].host"},
		"without a network":   {Config{Profiles: map[string]ProfileConfig{"lab": {AllowNetwork: ptr(false)}}, Tenants: of(entry("x.example", "X-Key", "/t"))}, "tenants.t.network_rules.inject[0].host"},
		"inherited, narrowed": {Config{Profiles: map[string]ProfileConfig{"lab": {NetworkRules: with(entry("api.example", "X-Key", "/a"))}, "less": {Extends: "lab", NetworkRules: NetworkConfig{Allow: &[]string{"c.example"}}}}}, "profiles.less.network_rules.inject[0].host"},
	} {
		_, err := New(c.c)
		if bad, ok := errors.AsType[*spec.FieldError](err); c.field == "" && err != nil || c.field != "" && (!ok || bad.Field != c.field) {
			t.Errorf("%s: %v, want %q", name, err, c.field)
		}
	}
	p := newPolicy(t, Config{NetworkAvailable: true,
		Profiles: map[string]ProfileConfig{"lab": {NetworkRules: with(entry("api.example", "Authorization", "/a"), entry("b.example:8443", "X-Key", "/b"))}},
		Tenants:  of(entry("API.example.:443", "X-Other", "/t"))})
	for tenant, want := range map[string][]string{"u": {"/a", "/b"}, "t": {"/b", "/t"}} {
		r, err := p.Resolve(tenant, Request{Wishes: spec.Wishes{Profile: "lab", NetworkRules: &spec.NetworkRules{Deny: []string{"api.example"}}, LiveWishes: spec.LiveWishes{Network: ptr(true)}}})
		if err != nil {
			t.Fatal(err)
		}
		all, err := p.NetworkRules(tenant, r)
		var got []string
		for _, in := range all.Inject {
			got = append(got, in.ValueFrom.File)
		}
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %q, %v; want %q", tenant, got, err, want)
		}
	}
	if list := p.profiles["lab"].NetworkRules.Inject; len(list) != 2 {
		t.Errorf("the profile has changed: %+v", list)
	}
}

// TestNetworkRulesLocked: a profile that locks them ignores the rules of requests.
func TestNetworkRulesLocked(t *testing.T) {
	p := newPolicy(t, Config{NetworkAvailable: true, Profiles: map[string]ProfileConfig{"lab": {Locked: &[]string{"network_rules"}}}})
	for own, want := range map[*spec.NetworkRules][]string{{Allow: []string{"a.example"}}: {"network_rules"}, {Limits: spec.NetworkLimits{Bytes: 1}}: {"network_rules"}, {}: nil, nil: nil} {
		r, err := p.Resolve("t", Request{Wishes: spec.Wishes{Profile: "lab", NetworkRules: own, LiveWishes: spec.LiveWishes{Network: ptr(true)}}})
		if err != nil || !r.NetworkRules.Equal(nil) || !slices.Equal(r.Overridden, want) {
			t.Errorf("%+v: %+v, overridden %q, %v", own, r.NetworkRules, r.Overridden, err)
		}
	}
	if !p.Locks("lab", "network_rules") || p.Locks("default", "network_rules") || p.Locks("gone", "network_rules") {
		t.Error("Locks")
	}
}
