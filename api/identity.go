package api

import (
	"fmt"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// Role says what an identity may do. A higher one may do all that a lower one may.
type Role int

// The roles.
const (
	Viewer   Role = iota + 1 // reads what is its tenant's
	Operator                 // changes what is its tenant's
	Admin                    // everything of all tenants
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

// AllTenants in place of a tenant's name stands for every tenant.
const AllTenants = "*"

// DefaultTenant is that of callers who are known by the Unix socket.
const DefaultTenant = "default"

// Identity is who asks.
type Identity struct {
	// Tenant is the caller's own; AllTenants for one that may act for any, such as a
	// viewer that collects metrics.
	Tenant string
	// Actor names the caller in logs, such as "uid:1000" or "token:ci".
	Actor string
	Role  Role
}

// all says that the identity may choose the tenant.
func (i Identity) all() bool { return i.Role == Admin || i.Tenant == AllTenants }

// newIdentity checks the parts of an identity that come from outside.
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
