package policy

import (
	"errors"
	"fmt"

	"github.com/boxd/boxd/engine/spec"
)

// Conditions that callers distinguish with errors.Is.
var (
	// ErrDenied: well-formed, but not allowed here. See [DeniedError].
	ErrDenied = errors.New("denied by policy")
	// ErrQuota: a quota of the tenant or a cap of the whole daemon is used up. See
	// [QuotaError].
	ErrQuota = errors.New("quota exceeded")
)

// DeniedError is a request that the policy forbids. It matches ErrDenied.
type DeniedError struct {
	Field string // of the request
	Value string // quoted, or formatted for people
	Rule  string // that forbids it, and what to do
}

func (e *DeniedError) Error() string { return fmt.Sprintf("%s %s: %s", e.Field, e.Value, e.Rule) }

// Is makes every DeniedError an ErrDenied.
func (e *DeniedError) Is(target error) bool { return target == ErrDenied }

// QuotaError says that a request asks for more than is left. It matches ErrQuota. Its
// numbers are formatted for people, in the unit of the resource.
type QuotaError struct {
	Tenant   string // empty: the limit of all tenants together
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
