// Package policy decides what a request may have: profiles with defaults, caps and
// locked fields, host directories that may be mounted, names, quotas of tenants.
//
// It holds no session and touches no kernel: a decision is a value that the caller
// acts on and audits.
package policy
