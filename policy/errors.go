package policy

import "errors"

// Conditions that callers tell apart with errors.Is.
var (
	// ErrDenied: well-formed, but not allowed here. See [DeniedError].
	ErrDenied = errors.New("denied by policy")
	// ErrQuota: a quota of the tenant or a cap of the whole daemon is used up. See
	// [QuotaError].
	ErrQuota = errors.New("quota exceeded")
)
