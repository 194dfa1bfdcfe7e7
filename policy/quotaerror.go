package policy

import (
	"fmt"

	"github.com/boxd/boxd/engine/spec"
)

// QuotaError is a request for more than is left. It matches ErrQuota. Numbers are
// written for people, in the unit of the resource.
type QuotaError struct {
	Tenant   string // empty: the cap of all tenants together
	Resource string // such as "sessions" or "memory"
	Limit    string
	InUse    string
	Asked    string
	Advice   string // what to do
}

func newQuotaError(tenant string, i int, limit, inUse, asked int64) *QuotaError {
	r := resources[i]
	key := "limits." + r.name
	if tenant != "" {
		key = fmt.Sprintf("tenants.%s.quotas.%s", tenant, r.name)
	}
	return &QuotaError{Tenant: tenant, Resource: r.name, Limit: r.format(limit), InUse: r.format(inUse), Asked: r.format(asked),
		Advice: fmt.Sprintf("%s, or raise %s", r.advice, key)}
}

func (e *QuotaError) Error() string {
	who := "all tenants"
	if e.Tenant != "" {
		who = "tenant " + spec.Quote(e.Tenant)
	}
	return fmt.Sprintf("%s: %s: limit %s, in use %s, asked %s: %s", who, e.Resource, e.Limit, e.InUse, e.Asked, e.Advice)
}

// Is makes every QuotaError an ErrQuota.
func (e *QuotaError) Is(target error) bool { return target == ErrQuota }
