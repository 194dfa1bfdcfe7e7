package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/boxd/boxd/engine/spec"
)

// Policy decides by a configuration. It is immutable and safe for concurrent use.
type Policy struct {
	config   Config
	profiles map[string]Profile
	tenants  map[string]tenantRules
	fallback tenantRules // of tenants that the configuration does not name
	limits   Quotas      // global, defaults filled in
}

// tenantRules are the rules for one tenant, with all defaults filled in.
type tenantRules struct {
	quotas   Quotas
	roots    []string
	profiles []string // nil: all
	images   imageRules
	network  TenantNetwork

	strictScopes bool
	daily        Budget
	rates        Rates
}

// New checks c and returns its policy. Errors are *[spec.FieldError], whose Field is the
// key in the configuration file.
func New(c Config) (*Policy, error) {
	idleTTL := cmp.Or(c.IdleTTL, spec.Duration(DefaultIdleTTL))
	profiles, err := buildProfiles(c.Profiles, c.Languages, idleTTL)
	if err != nil {
		return nil, err
	}
	c.DefaultProfile = cmp.Or(c.DefaultProfile, DefaultProfile)
	p := &Policy{config: c, profiles: profiles, tenants: make(map[string]tenantRules, len(c.Tenants))}
	if err := p.checkProfile("default_profile", c.DefaultProfile); err != nil {
		return nil, err
	}
	if err := p.validateEngines(); err != nil {
		return nil, err
	}
	if err := checkRoots("allowed_mount_roots", c.AllowedMountRoots, c.OwnDirs); err != nil {
		return nil, err
	}
	if err := checkRoots("sensitive_mount_roots", c.SensitiveMountRoots, nil); err != nil {
		return nil, err
	}
	if p.limits, err = c.Limits.resolve("limits", DefaultLimits); err != nil {
		return nil, err
	}
	p.fallback = tenantRules{roots: slices.Clone(c.AllowedMountRoots), images: imageRules{"allowed_images", slices.Clone(c.AllowedImages), c.ImageDigests}}
	if err := checkPatterns("allowed_images", p.fallback.images.allowed); err != nil {
		return nil, err
	}
	if p.fallback.quotas, err = c.TenantDefaults.resolve("tenant_defaults", DefaultQuotas); err != nil {
		return nil, err
	}
	if p.fallback.rates, err = c.TenantRates.resolve("tenant_rates.", Rates{}); err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(c.Tenants)) {
		if p.tenants[name], err = p.tenantRules(name, c.Tenants[name]); err != nil {
			return nil, err
		}
	}
	return p, nil
}

func (p *Policy) tenantRules(name string, t Tenant) (tenantRules, error) {
	if err := ValidateTenant(name); err != nil {
		return tenantRules{}, inField("tenants", err)
	}
	field := "tenants." + name
	rules := tenantRules{roots: p.fallback.roots, images: p.fallback.images, network: t.NetworkRules, profiles: slices.Clone(t.Profiles), strictScopes: t.StrictScopes, daily: t.Daily}
	for i, profile := range t.Profiles {
		if err := p.checkProfile(fmt.Sprintf("%s.profiles[%d]", field, i), profile); err != nil {
			return tenantRules{}, err
		}
	}
	if t.AllowedMountRoots != nil {
		rules.roots = slices.Clone(*t.AllowedMountRoots)
		if err := checkRoots(field+".allowed_mount_roots", rules.roots, p.config.OwnDirs); err != nil {
			return tenantRules{}, err
		}
	}
	if t.AllowedImages != nil {
		rules.images.field, rules.images.allowed = field+".allowed_images", append([]string{}, *t.AllowedImages...)
		if err := checkPatterns(rules.images.field, rules.images.allowed); err != nil {
			return tenantRules{}, err
		}
	}
	rules.images.digests = rules.images.digests || t.ImageDigests
	if err := t.NetworkRules.validate(field + ".network_rules"); err != nil {
		return tenantRules{}, err
	}
	if err := p.validateInject(field+".network_rules", rules); err != nil {
		return tenantRules{}, err
	}
	if err := t.Daily.validate(field + ".daily"); err != nil {
		return tenantRules{}, err
	}
	var err error
	if rules.rates, err = t.Rates.resolve(field+".rates.", p.fallback.rates); err != nil {
		return tenantRules{}, err
	}
	rules.quotas, err = t.Quotas.resolve(field+".quotas", p.fallback.quotas)
	return rules, err
}

// rules returns the rules for tenant.
func (p *Policy) rules(tenant string) tenantRules {
	if r, ok := p.tenants[tenant]; ok {
		return r
	}
	return p.fallback
}

func (p *Policy) checkProfile(field, name string) error {
	if _, ok := p.profiles[name]; ok {
		return nil
	}
	return &spec.FieldError{Field: field, Value: spec.Quote(name),
		Rule: "unknown profile; there are " + strings.Join(slices.Sorted(maps.Keys(p.profiles)), ", ")}
}

// Profiles lists all profiles, sorted by name. The caller owns the list.
func (p *Policy) Profiles() []Profile {
	all := make([]Profile, 0, len(p.profiles))
	for _, name := range slices.Sorted(maps.Keys(p.profiles)) {
		all = append(all, p.profiles[name].clone())
	}
	return all
}

// Locks reports whether a profile locks a field of requests. One that is gone locks nothing.
func (p *Policy) Locks(profile, field string) bool {
	return slices.Contains(p.profiles[profile].Locked, field)
}

// MountRoots returns the directories of the host from which tenant may mount.
func (p *Policy) MountRoots(tenant string) []string {
	return slices.Clone(p.rules(tenant).roots)
}
