package session

import "github.com/boxd/boxd/policy"

// Key names a session. Two keys are the same session only if both parts are
// equal byte by byte.
type Key struct {
	Tenant string `json:"tenant"`
	ID     string `json:"id"`
}

func (k Key) String() string { return k.Tenant + "/" + k.ID }

// validate checks both parts by the rules of package policy.
func (k Key) validate() error {
	if err := policy.ValidateTenant(k.Tenant); err != nil {
		return err
	}
	return policy.ValidateSessionID(k.ID)
}

// Caller is who asks, for the audit log and the logs. It was authenticated by the
// edge; nothing is decided by it here.
type Caller struct {
	Tenant  string // of the caller, which may differ from the session's
	Actor   string // such as the name of a token or "uid:1000"
	Role    string
	Request string // id of the request
}
