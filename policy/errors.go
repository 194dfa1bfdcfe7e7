package policy

import (
	"errors"
	"fmt"
)

// Conditions that callers tell apart with errors.Is.
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
	Value string // quoted or formatted for people
	Rule  string // what forbids it, and what to do
}

func (e *DeniedError) Error() string { return fmt.Sprintf("%s %s: %s", e.Field, e.Value, e.Rule) }

// Is makes every DeniedError an ErrDenied.
func (e *DeniedError) Is(target error) bool { return target == ErrDenied }
