package api

import (
	"fmt"
	"strconv"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// Role says what an identity may do. A higher role may do everything that a lower one may.
type Role int

// The roles.
const (
	Viewer   Role = iota + 1 // reads what belongs to its tenant
	Operator                 // changes it, too
	Admin                    // does everything, for all tenants
)

var roleNames = map[Role]string{Viewer: "viewer", Operator: "operator", Admin: "admin"}

func (r Role) String() string { return roleNames[r] }

// ParseRole reads "admin", "operator" or "viewer".
func ParseRole(s string) (Role, error) {
	for r, name := range roleNames {
		if name == s {
			return r, nil
		}
	}
	return 0, &engine.FieldError{Field: "role", Value: spec.Quote(s), Rule: "must be admin, operator or viewer"}
}

// AllTenants stands for every tenant in place of a tenant's name.
const AllTenants = "*"

// DefaultTenant is the tenant of callers that the Unix socket identifies.
const DefaultTenant = "default"

// Identity is an authenticated caller.
type Identity struct {
	// Tenant is the caller's own; AllTenants for a caller that may act for any tenant, such
	// as a viewer that collects metrics.
	Tenant string
	// Actor names the caller in logs: "uid:1000", "token:ci". Two credentials that may act for one tenant
	// never have the same.
	Actor string
	// Key identifies the credentials, whatever they are called: a user, a token or the public key of a
	// certificate. It stays when a file of tokens is edited, and is no secret.
	Key  string
	Role Role
	// Scope is the template of the ID of sessions for which the caller names neither ID nor
	// scope; empty: none.
	Scope string
	// Limits are those of the caller's token; nil: none.
	Limits *policy.Limiter
	// Gone is closed when the caller's token is removed, or stands for something else; nil: never.
	Gone <-chan struct{}
}

// all reports whether the caller may choose the tenant.
func (i Identity) all() bool { return i.Role == Admin || i.Tenant == AllTenants }

// shownKey is the number of hexadecimal digits of a digest that stand for a credential without a name. Nobody
// can find two credentials that agree in 64 bits.
const shownKey = 16

// userIdentity returns the identity of a user of this host in the default tenant.
func userIdentity(uid int, role Role) Identity {
	name := "uid:" + strconv.Itoa(uid)
	return Identity{Tenant: DefaultTenant, Actor: name, Key: name, Role: role}
}

// LocalOperator returns the identity of a user of this host who has sent no credentials, for [Auth.Local].
func LocalOperator(uid int) Identity { return userIdentity(uid, Operator) }

// newIdentity checks the parts of an identity that come from outside. Its Key is missing.
func newIdentity(tenant, role, actor string) (Identity, error) {
	r, err := ParseRole(role)
	if err != nil {
		return Identity{}, err
	}
	if tenant != AllTenants {
		if err := policy.ValidateTenant(tenant); err != nil {
			return Identity{}, fmt.Errorf("tenant: %w", err)
		}
	}
	return Identity{Tenant: tenant, Actor: actor, Role: r}, nil
}
