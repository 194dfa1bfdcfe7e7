package policy

import (
	"fmt"

	"github.com/boxd/boxd/engine/spec"
)

// validate checks b; field is its key.
func (b Budget) validate(field string) error {
	for _, f := range []struct {
		name, value string
		bad         bool
	}{{"cpu", b.CPU.String(), b.CPU < 0}, {"execs", fmt.Sprint(b.Execs), b.Execs < 0}, {"written", fmt.Sprint(int64(b.Written)), b.Written < 0}} {
		if f.bad {
			return &spec.FieldError{Field: field + "." + f.name, Value: f.value, Rule: "must be above 0, or 0 for no bound"}
		}
	}
	return nil
}

// HasBudget reports whether tenant may use only so much on one day.
func (p *Policy) HasBudget(tenant string) bool { return p.rules(tenant).daily != Budget{} }

// CheckBudget returns a [QuotaError] if tenant has used up what it may use on one day.
func (p *Policy) CheckBudget(tenant string, used Budget) error {
	b := p.rules(tenant).daily
	for _, f := range []struct {
		name         string
		limit, inUse int64
		format       func(int64) string
	}{
		{"cpu", int64(b.CPU), int64(used.CPU), func(n int64) string { return spec.Duration(n).String() }},
		{"execs", b.Execs, used.Execs, plain},
		{"written", int64(b.Written), int64(used.Written), spec.FormatSize},
	} {
		if f.limit > 0 && f.inUse >= f.limit {
			return &QuotaError{Tenant: tenant, Resource: f.name + "_per_day", Limit: f.format(f.limit), InUse: f.format(f.inUse), Asked: "more",
				Advice: fmt.Sprintf("wait until midnight UTC, or raise tenants.%s.daily.%s", tenant, f.name)}
		}
	}
	return nil
}
