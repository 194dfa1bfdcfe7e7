// Package grants keeps the admission state of a managed deployment across restarts: the
// policy from box_init, which workspaces may use a sandbox and until when, and which grants
// were revoked. It knows nothing of sessions: its callers remove the sessions of a workspace
// that has lost its grant.
package grants

import (
	"encoding/json"
	"sync"
	"time"

	"go.etcd.io/bbolt"

	"github.com/boxd/boxd/langbot/protocol"
)

// Grant allows one generation of a workspace to use a sandbox until it expires.
type Grant struct {
	Instance            string    `json:"instance"`
	Workspace           string    `json:"workspace"`
	Generation          int64     `json:"generation"`
	Revision            int64     `json:"revision"`
	MaxSessions         int64     `json:"max_sessions"`
	MaxManagedProcesses int64     `json:"max_managed_processes"`
	Expires             time.Time `json:"expires"`
}

// Context returns the context of the actions that the grant admits.
func (g Grant) Context() protocol.Context {
	return protocol.Context{Instance: g.Instance, Workspace: g.Workspace, Generation: g.Generation}
}

// Reply returns the reply to the installation of the grant.
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

// Revocation revokes the grants of a workspace with this revision or a lower one.
type Revocation struct {
	Instance  string
	Workspace string
	Revision  int64
}

// Reply returns the reply to the revocation.
func (r Revocation) Reply() any {
	return struct {
		Revoked   bool   `json:"revoked"`
		Workspace string `json:"workspace_uuid"`
		Revision  int64  `json:"entitlement_revision"`
	}{true, r.Workspace, r.Revision}
}

// Due is a workspace whose sessions, those of all generations, have to be removed before the
// workspace may be used again.
type Due struct {
	Instance  string
	Workspace string
	mark      uint64
}

// Book is the admission state of all workspaces. It is safe for concurrent use. Everything
// that it returns is on disk; only Upsert, Revoke, Due, Done and Configure wait for the disk.
type Book struct {
	db  *bbolt.DB
	now func() time.Time

	writing sync.Mutex // held while anything below is changed; locked before mu
	armed   bool       // this process has required admission, which cannot be undone; guarded by writing

	mu      sync.RWMutex // a holder of writing needs it only to change something
	policy  Policy
	invalid error // why the policy cannot be trusted
	records map[protocol.WorkspaceKey]record
}

// Open returns the book that is kept in db, with its latest policy.
func Open(db *bbolt.DB, now func() time.Time) (*Book, error) {
	b := &Book{db: db, now: now}
	raw, err := b.load()
	if err != nil {
		return nil, err
	}
	b.policy, b.invalid = ParsePolicy(raw)
	return b, nil
}

// Configure installs the policy from box_init; nil means that there is none. A policy that
// cannot be parsed requires admission and admits no one, see Policy. Errors come from the
// database.
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

// Policy returns the policy in force. The error, of class Readiness, says why the policy
// cannot be trusted; then it requires admission, and no one is admitted.
func (b *Book) Policy() (Policy, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.policy, b.invalid
}

// Live returns the grant by which c may use a sandbox now.
func (b *Book) Live(c protocol.Context) (Grant, error) {
	b.mu.RLock()
	p, invalid := b.policy, b.invalid
	r := b.records[protocol.KeyOf(c.Instance, c.Workspace)]
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
