package policy

import (
	"cmp"
	"fmt"
	"maps"
	"reflect"
	"slices"

	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/engine/spec"
)

// packageIndexes are what network_basic may reach: where the package managers of the common
// languages and distributions download from, by https (port 443) and, for Debian and Ubuntu, whose
// packages are signed, by http.
var packageIndexes = []string{
	"pypi.org", "files.pythonhosted.org", // pip, uv
	"registry.npmjs.org", "registry.yarnpkg.com", // npm, pnpm, yarn
	"proxy.golang.org", "sum.golang.org", // go
	"crates.io", "index.crates.io", "static.crates.io", // cargo
	"rubygems.org", "index.rubygems.org", // gem, bundle
	"repo.maven.apache.org", "repo1.maven.org", // mvn, gradle
	"deb.debian.org", "security.debian.org", "archive.ubuntu.com", "security.ubuntu.com", "ports.ubuntu.com", // apt
}

// defaultLimits are those of the built-in profiles. No standard names such numbers. 50 MiB/s is less
// than half of a link of 1 Gbit/s, so that one box leaves room for others, and fetches the largest
// wheels with their libraries (PyTorch with CUDA, about 2.5 GB) in a minute. 100 GiB are 34 minutes of
// that: far above installations, builds and most models.
var defaultLimits = spec.NetworkLimits{Connections: rules.DefaultConnections, ConnectionRate: rules.DefaultConnectionRate,
	Bytes: 100 << 30, Bandwidth: 50 << 20, Idle: spec.Duration(rules.DefaultIdle)}

// publicNetwork is every public address, and nothing private.
var publicNetwork = rules.Rules{Public: true, Limits: defaultLimits}

// NetworkConfig changes the network rules of a profile. docs/network.md describes the entries.
type NetworkConfig struct {
	Allow         *[]string     `yaml:"allow"`
	Deny          *[]string     `yaml:"deny"`
	Public        *bool         `yaml:"public"`
	Upstream      *string       `yaml:"upstream"`
	UpstreamLogin *string       `yaml:"upstream_login"` // file with user:password
	Limits        NetworkLimits `yaml:"limits"`
	// Inject replaces the list of the extended profile.
	Inject *[]rules.Inject `yaml:"inject"`
}

// NetworkLimits change the limits in the network rules of a profile.
type NetworkLimits struct {
	Connections    *int           `yaml:"connections"`
	ConnectionRate *int           `yaml:"connection_rate"`
	Bytes          *spec.Size     `yaml:"bytes"`
	Bandwidth      *spec.Size     `yaml:"bandwidth"`
	Idle           *spec.Duration `yaml:"idle"`
}

// TenantNetwork narrows, for all sessions of a tenant, what their profiles let them reach.
type TenantNetwork struct {
	// Allow leaves what an entry matches; nil or empty: everything.
	Allow []string `yaml:"allow"`
	Deny  []string `yaml:"deny"`
	// Limits are the most that a box of the tenant has, whatever its profile; 0: the profile's.
	Limits spec.NetworkLimits `yaml:"limits"`
	// Inject gives its sessions secrets of the tenant. For a host that it names, it replaces what the
	// profile injects.
	Inject []rules.Inject `yaml:"inject"`
}

// narrow takes away from all what n does not leave.
func (n TenantNetwork) narrow(all *rules.Rules) {
	all.MoreDeny = append(all.MoreDeny, n.Deny)
	if len(n.Allow) > 0 {
		all.Only = append(all.Only, n.Allow)
	}
	for _, l := range limits(&all.Limits, &n.Limits) {
		if l.above() {
			l.have.Set(l.most)
		}
	}
	if len(n.Inject) > 0 {
		all.Inject = slices.DeleteFunc(slices.Clone(all.Inject), func(in rules.Inject) bool {
			return slices.ContainsFunc(n.Inject, func(own rules.Inject) bool { return injectTarget(own).Name == injectTarget(in).Name })
		})
		all.Inject = append(all.Inject, n.Inject...)
	}
}

// limit is one of the limits of a network, twice. 0 is no limit.
type limit struct {
	name       string
	have, most reflect.Value
}

// limits pairs each limit in have with the one in most.
func limits(have, most *spec.NetworkLimits) (list []limit) {
	h, m := reflect.ValueOf(have).Elem(), reflect.ValueOf(most).Elem()
	for i, f := range reflect.VisibleFields(h.Type()) {
		list = append(list, limit{f.Tag.Get("yaml"), h.Field(i), m.Field(i)})
	}
	return list
}

func (l limit) above() bool {
	have, most := l.have.Int(), l.most.Int()
	return most > 0 && (have == 0 || have > most)
}

// injectTarget returns where a request with the secret goes.
func injectTarget(in rules.Inject) rules.Target {
	t, _ := rules.ParseAuthority(in.Host, 443) // valid: rules.Compile has checked it
	return t
}

// uncovered returns the index of the first entry of Inject whose host the rules do not let a box reach,
// -1 if there is none.
func uncovered(r rules.Rules) int {
	set, err := rules.Compile(r)
	if err != nil {
		return -1 // the caller has validated r
	}
	return slices.IndexFunc(r.Inject, func(in rules.Inject) bool { return !set.Decide(injectTarget(in), rules.Surroundings{}).Allowed })
}

// validate checks the entries. The field of an error is below field.
func (n TenantNetwork) validate(field string) error {
	return inField(field, rules.Rules{Allow: n.Allow, Deny: n.Deny, Limits: n.Limits, Inject: n.Inject}.Validate())
}

// validateInject checks that a profile that tenant may have reaches each host for which it has a secret.
func (p *Policy) validateInject(field string, t tenantRules) error {
	for i, in := range t.network.Inject {
		reached := func(profile Profile) bool {
			all := profile.clone().NetworkRules
			alone := t.network
			alone.Inject = []rules.Inject{in}
			all.Inject = nil
			alone.narrow(&all)
			return profile.AllowNetwork && uncovered(all) < 0 && (len(t.profiles) == 0 || slices.Contains(t.profiles, profile.Name))
		}
		if !slices.ContainsFunc(slices.Collect(maps.Values(p.profiles)), reached) {
			return &spec.FieldError{Field: fmt.Sprintf("%s.inject[%d].host", field, i), Value: spec.Quote(in.Host), Rule: "is reached by no profile of the tenant: let one of them reach it"}
		}
	}
	return nil
}

// apply sets the values that c has. A list of what is allowed ends public, which it could not
// narrow otherwise.
func (c NetworkConfig) apply(r *rules.Rules) {
	if c.Allow != nil {
		r.Public = false
	}
	spec.CopyFields(r, c)
	spec.CopyFields(&r.Limits, c.Limits)
	if c.UpstreamLogin != nil {
		r.UpstreamLogin = nil
		if *c.UpstreamLogin != "" {
			r.UpstreamLogin = &rules.Source{File: *c.UpstreamLogin}
		}
	}
}

// NetworkRules returns what a session of r may reach: what its profile allows now, narrowed by the
// rules of its tenant and by its own. The error is a *[DeniedError] if that is no network at all, and a *[spec.FieldError] if
// its own rules are wrong.
func (p *Policy) NetworkRules(tenant string, r Resolved) (rules.Rules, error) {
	if err := p.MayHaveNetwork(r); err != nil {
		return rules.Rules{}, err
	}
	if !p.config.NetworkAvailable {
		return rules.Rules{}, p.noNetwork(r.Profile)
	}
	all := p.profiles[r.Profile].clone().NetworkRules
	all.Limits.Connections = cmp.Or(all.Limits.Connections, rules.DefaultConnections)
	all.Limits.ConnectionRate = cmp.Or(all.Limits.ConnectionRate, rules.DefaultConnectionRate)
	all.Limits.Idle = cmp.Or(all.Limits.Idle, spec.Duration(rules.DefaultIdle))
	p.rules(tenant).network.narrow(&all)
	if r.NetworkRules != nil {
		own := TenantNetwork{Allow: r.NetworkRules.Allow, Deny: r.NetworkRules.Deny, Limits: r.NetworkRules.Limits}
		if err := own.validate("network_rules"); err != nil {
			return rules.Rules{}, err
		}
		own.narrow(&all)
	}
	return all, inField("network_rules", all.Validate())
}

// CheckNetworkRules refuses the rules of r, which a request or an update asks for.
func (p *Policy) CheckNetworkRules(tenant string, r Resolved) error {
	if r.NetworkRules == nil {
		return nil
	}
	if !r.Network {
		return &spec.FieldError{Field: "network_rules", Value: "of a session without a network", Rule: "needs network: true"}
	}
	if _, err := p.NetworkRules(tenant, r); err != nil {
		return err
	}
	own := r.NetworkRules.Limits
	r.NetworkRules = nil
	most, err := p.NetworkRules(tenant, r)
	if err != nil {
		return err
	}
	for _, l := range limits(&own, &most.Limits) {
		if l.have.Int() > 0 && l.above() {
			return &spec.FieldError{Field: "network_rules.limits." + l.name, Value: fmt.Sprint(l.have.Interface()),
				Rule: fmt.Sprintf("is above the limit %v of profile %q or of the tenant: ask for less, or raise network_rules.limits.%s there", l.most.Interface(), r.Profile, l.name)}
		}
	}
	return nil
}

// PackageIndexes returns what the profile network_basic reaches. The caller owns the list.
func PackageIndexes() []string { return slices.Clone(packageIndexes) }
