// Package grants keeps the admission of a managed deployment: the policy of box_init,
// which workspaces may use a sandbox until when, and which may not any more. It outlives a
// restart. It knows nothing of sessions: callers remove what a lost grant leaves behind.
package grants

import (
	"encoding/json"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/boxd/boxd/langbot/protocol"
)

// Grant lets one generation of a workspace use a sandbox for a while.
type Grant struct {
	Instance            string    `json:"instance"`
	Workspace           string    `json:"workspace"`
	Generation          int64     `json:"generation"`
	Revision            int64     `json:"revision"`
	MaxSessions         int64     `json:"max_sessions"`
	MaxManagedProcesses int64     `json:"max_managed_processes"`
	Expires             time.Time `json:"expires"`
}

// Context is that of the actions that the grant admits.
func (g Grant) Context() protocol.Context {
	return protocol.Context{Instance: g.Instance, Workspace: g.Workspace, Generation: g.Generation}
}

// Reply is how a client is told of an installed grant.
func (g Grant) Reply() any {
	return struct {
		Installed           bool   `json:"installed"`
		Workspace           string `json:"workspace_uuid"`
		Generation          int64  `json:"execution_generation"`
		Revision            int64  `json:"entitlement_revision"`
		MaxSessions         int64  `json:"max_sessions"`
		MaxManagedProcesses int64  `json:"max_managed_processes"`
		Expires             string `json:"expires_at"`
	}{true, g.Workspace, g.Generation, g.Revision, g.MaxSessions, g.MaxManagedProcesses, protocol.ISO(g.Expires)}
}

// Revocation takes the grant of a workspace away, and all with its revision or a lower one.
type Revocation struct {
	Instance  string
	Workspace string
	Revision  int64
}

// Reply is how a client is told of it.
func (r Revocation) Reply() any {
	return struct {
		Revoked   bool   `json:"revoked"`
		Workspace string `json:"workspace_uuid"`
		Revision  int64  `json:"entitlement_revision"`
	}{true, r.Workspace, r.Revision}
}

// Due is a workspace whose sessions have to go before anybody may use it again. They
// are those of all its generations.
type Due struct {
	Instance  string
	Workspace string
	mark      uint64
}

// Book is what is known about all workspaces. It is safe for concurrent use. What it says has
// been written before; only Upsert, Revoke, Due, Done and Configure wait for the disk.
type Book struct {
	db  *bbolt.DB
	now func() time.Time

	writing sync.Mutex // held by who changes something; before mu
	armed   bool       // admission was required in this process, and stays so; under writing

	mu      sync.RWMutex
	policy  Policy
	invalid error // why the policy cannot be trusted
	records map[key]record
}

// Open returns the book that is kept in db, with the policy that it had last.
func Open(db *bbolt.DB, now func() time.Time) (*Book, error) {
	b := &Book{db: db, now: now}
	raw, err := b.load()
	if err != nil {
		return nil, err
	}
	b.policy, b.invalid = ParsePolicy(raw)
	return b, nil
}

// Configure takes over the policy in box_init, nil if there is none. One that cannot be
// read is taken for one that requires admission and is not ready: see Policy. Errors
// are of the database.
func (b *Book) Configure(raw json.RawMessage) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	p, invalid := ParsePolicy(raw)
	if b.armed && !p.Required {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.invalid = protocol.Errorf(protocol.Readiness,
			"Invalid sandbox admission configuration: enforcement cannot be disabled without restarting the Box Runtime")
		return nil
	}
	if err := b.savePolicy(raw); err != nil {
		return err
	}
	b.armed = p.Required
	b.mu.Lock()
	defer b.mu.Unlock()
	b.policy, b.invalid = p, invalid
	return nil
}

// Policy returns the policy in force. The error, of class Readiness, says why it cannot be
// trusted; then it requires admission, and nobody is admitted.
func (b *Book) Policy() (Policy, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.policy, b.invalid
}

// Live returns the grant by which c may use a sandbox now.
func (b *Book) Live(c protocol.Context) (Grant, error) {
	b.mu.RLock()
	p, invalid := b.policy, b.invalid
	r := b.records[keyOf(c.Instance, c.Workspace)]
	b.mu.RUnlock()
	g := r.Grant
	switch {
	case !p.Required:
		return Grant{}, errOff
	case invalid != nil:
		return Grant{}, invalid
	case g == nil:
		return Grant{}, refuse("Sandbox admission grant is missing")
	case !b.now().Before(g.Expires):
		return Grant{}, refuse("Sandbox admission grant has expired")
	case g.Generation != c.Generation:
		return Grant{}, refuse("Sandbox admission grant belongs to another execution generation")
	case g.MaxSessions < 1:
		return Grant{}, refuse("Sandbox admission grant does not permit sessions")
	case g.MaxSessions > p.MaxSessions || g.MaxManagedProcesses > p.MaxManagedProcesses:
		return Grant{}, refuse("Sandbox admission grant exceeds the active runtime policy")
	case r.Dirty:
		return Grant{}, refuse("Sandbox of an earlier grant is still being removed: try again")
	}
	return *g, nil
}

var errOff = refuse("Sandbox admission enforcement is not enabled")

func refuse(format string, a ...any) *protocol.Error {
	return protocol.Errorf(protocol.Admission, format, a...)
}
