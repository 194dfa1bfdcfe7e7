package session

import "github.com/boxd/boxd/policy"

// Key names a session. Two keys are the same session only if both parts are
// equal byte by byte.
type Key struct {
	Tenant string
	ID     string
}

func (k Key) String() string { return k.Tenant + "/" + k.ID }

// validate checks both parts by the rules of package policy.
func (k Key) validate() error {
	if err := policy.ValidateTenant(k.Tenant); err != nil {
		return err
	}
	return policy.ValidateSessionID(k.ID)
}

// Caller identifies who makes a request, for the audit log and the logs. The edge has
// authenticated it; this package makes no decision by it.
type Caller struct {
	Tenant  string // the caller's own; it may differ from the session's
	Actor   string // name of a token, "uid:1000", or the like
	Request string // ID of the request
	// Limits are those of the caller's token, besides the ones of the tenant; nil: none.
	Limits *policy.Limiter
}
