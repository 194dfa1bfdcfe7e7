package grants

import (
	"encoding/json"
	"math"
	"time"

	"github.com/boxd/boxd/langbot/protocol"
)

// Asker is the connection that asks for a change, with the limits of the change.
type Asker struct {
	Instance   string                                         // may name only its own workspaces
	Current    func(instance, workspace string) (int64, bool) // Fence.Current
	MaxRecords int                                            // maximum number of workspaces in the book
}

// Upsert installs the grant in data, unless a grant of the same generation and revision
// lasts longer, and returns the grant that is installed. If purge is true, Due now returns
// the workspace: the caller has to remove its sessions and call Done before the grant admits
// anyone. If it is false, only the LogicalSession of the grant's generation may stay.
func (b *Book) Upsert(data json.RawMessage, by Asker) (_ Grant, purge bool, _ error) {
	g, err := parseGrant(data)
	if err != nil {
		return Grant{}, false, err
	}
	if g.Instance != by.Instance {
		return Grant{}, false, errInstance
	}
	b.writing.Lock()
	defer b.writing.Unlock()
	p, invalid := b.Policy()
	if !p.Required {
		return Grant{}, false, errOff
	}
	if invalid != nil {
		return Grant{}, false, invalid
	}
	now := b.now()
	if err := p.permits(g, now); err != nil {
		return Grant{}, false, err
	}
	k := protocol.KeyOf(g.Instance, g.Workspace)
	r, known := b.records[k]
	if !known && len(b.records) >= by.MaxRecords {
		return Grant{}, false, refuse("Sandbox admission record capacity reached (%d)", by.MaxRecords)
	}
	if fence, ok := by.Current(g.Instance, g.Workspace); ok {
		r.Generation = max(r.Generation, fence)
	}
	if err := r.permits(g); err != nil {
		return Grant{}, false, err
	}
	old := r.Grant
	if old != nil && !now.Before(old.Expires) {
		old = nil // an expired grant counts as none, and its sessions have to be removed
	}
	if old != nil && old.Revision == g.Revision && old.Generation == g.Generation && g.Expires.Before(old.Expires) {
		return *old, r.Dirty, nil
	}
	r.Instance, r.Workspace = g.Instance, g.Workspace
	r.Revision, r.Generation = g.Revision, g.Generation
	r.MaxSessions, r.MaxManagedProcesses = g.MaxSessions, g.MaxManagedProcesses
	purge = old == nil || old.Generation != g.Generation || g.MaxSessions == 0
	if purge {
		r.soil()
	}
	r.Grant = &g
	return g, purge || r.Dirty, b.put(k, r)
}

// permits checks a grant by itself.
func (p Policy) permits(g Grant, now time.Time) error {
	switch {
	case !now.Before(g.Expires):
		return refuse("Cannot install an expired sandbox admission grant")
	case g.Expires.Sub(now)-1 >= time.Duration(min(p.MaxGrantTTLSec, maxSeconds))*time.Second:
		return refuse("Sandbox admission grant lifetime exceeds the configured maximum of %d s", p.MaxGrantTTLSec)
	case g.MaxSessions > p.MaxSessions:
		return refuse("Sandbox admission grant exceeds the session cap of %d", p.MaxSessions)
	case g.MaxManagedProcesses > p.MaxManagedProcesses:
		return refuse("Sandbox admission grant exceeds the managed-process cap of %d", p.MaxManagedProcesses)
	}
	return nil
}

// maxSeconds is the longest time that a time.Duration can hold.
const maxSeconds = int64(math.MaxInt64 / time.Second)

// permits checks a grant against earlier grants and revocations.
func (r record) permits(g Grant) error {
	switch {
	case g.Revision <= r.Revoked:
		return refuse("Sandbox admission grant revision %d was revoked", g.Revision)
	case g.Revision < r.Revision:
		return refuse("Sandbox admission grant revision %d is stale: %d was seen", g.Revision, r.Revision)
	case g.Generation < r.Generation:
		return refuse("Sandbox admission execution generation %d is stale: %d was seen", g.Generation, r.Generation)
	case g.Revision == r.Revision && (g.MaxSessions != r.MaxSessions || g.MaxManagedProcesses != r.MaxManagedProcesses):
		return refuse("Sandbox admission limits changed without a new entitlement revision")
	}
	return nil
}

// Revoke revokes the grant of a workspace, which Due returns from then on.
func (b *Book) Revoke(data json.RawMessage, by Asker) (Revocation, error) {
	v, err := parseRevocation(data)
	if err != nil {
		return Revocation{}, err
	}
	if v.Instance != by.Instance {
		return Revocation{}, errInstance
	}
	b.writing.Lock()
	defer b.writing.Unlock()
	if p, _ := b.Policy(); !p.Required {
		return Revocation{}, errOff
	}
	k := protocol.KeyOf(v.Instance, v.Workspace)
	r, known := b.records[k]
	switch {
	case v.Revision < max(r.Revision, r.Revoked):
		return Revocation{}, refuse("Sandbox admission revocation of revision %d is stale: %d was seen", v.Revision, max(r.Revision, r.Revoked))
	case !known && len(b.records) >= by.MaxRecords:
		return Revocation{}, refuse("Sandbox admission record capacity reached (%d)", by.MaxRecords)
	}
	r.Instance, r.Workspace = v.Instance, v.Workspace
	r.Revision, r.Revoked = v.Revision, v.Revision
	r.Grant = nil
	r.soil()
	return v, b.put(k, r)
}

var errInstance = protocol.Errorf(protocol.PermissionError, "instance_uuid is not that of this connection")

func parseGrant(data json.RawMessage) (Grant, error) {
	s := protocol.NewStrict(protocol.Admission, "grant", data)
	g := Grant{
		Instance:            s.Name("instance_uuid"),
		Workspace:           s.Name("workspace_uuid"),
		Generation:          s.Int("execution_generation", 1, math.MaxInt64),
		Revision:            s.Int("entitlement_revision", 1, math.MaxInt64),
		Expires:             s.Time("expires_at"),
		MaxSessions:         s.Int("max_sessions", 0, math.MaxInt64),
		MaxManagedProcesses: s.Int("max_managed_processes", 0, math.MaxInt64),
	}
	return g, s.Err()
}

func parseRevocation(data json.RawMessage) (Revocation, error) {
	s := protocol.NewStrict(protocol.Admission, "revocation", data)
	v := Revocation{
		Instance:  s.Name("instance_uuid"),
		Workspace: s.Name("workspace_uuid"),
		Revision:  s.Int("entitlement_revision", 1, math.MaxInt64),
	}
	return v, s.Err()
}

// Due drops the grants that have expired, and returns all workspaces whose sessions have to
// be removed, because their grant has expired, was revoked, or is a new one that starts
// without sessions. They include those whose removal an earlier process did not finish.
func (b *Book) Due() ([]Due, error) {
	b.writing.Lock()
	defer b.writing.Unlock()
	changed := map[protocol.WorkspaceKey]record{}
	var due []Due
	now := b.now()
	for k, r := range b.records {
		if r.Grant != nil && !now.Before(r.Grant.Expires) {
			r.Grant = nil
			r.soil()
			changed[k] = r
		}
		if r.Dirty {
			due = append(due, Due{r.Instance, r.Workspace, r.Mark})
		}
	}
	return due, b.putAll(changed)
}

// Done records that the sessions of d are removed. It does nothing if they had to be removed
// once more after d was returned.
func (b *Book) Done(d Due) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	k := protocol.KeyOf(d.Instance, d.Workspace)
	r := b.records[k]
	if !r.Dirty || r.Mark != d.mark {
		return nil
	}
	r.Dirty = false
	return b.put(k, r)
}

// DueOf returns the Due of one workspace, and whether its sessions have to be removed.
func (b *Book) DueOf(instance, workspace string) (Due, bool) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	r := b.records[protocol.KeyOf(instance, workspace)]
	return Due{r.Instance, r.Workspace, r.Mark}, r.Dirty
}
