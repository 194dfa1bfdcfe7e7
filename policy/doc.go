// Package policy decides what a request may have: by profiles with defaults, caps and
// locked fields, by the host directories that may be mounted, by rules for names, and by
// quotas of tenants.
//
// It holds no session and makes no system call: a decision is a value that the caller acts
// on and audits.
package policy
