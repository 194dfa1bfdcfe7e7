package grants

import (
	"encoding/json"
	"math"
	"time"

	"github.com/boxd/boxd/langbot/protocol"
)

// Asker is who asks for a change, and what bounds it.
type Asker struct {
	Instance   string                                         // the only one whose workspaces may be named
	Current    func(instance, workspace string) (int64, bool) // of the fence
	MaxRecords int                                            // workspaces in the book
}

// Upsert installs the grant in data, or says that a longer one of the same kind is there, and
// returns the one that is installed. If purge, the workspace is now among those that Due
// returns: its sessions have to go, and Done be called, before the grant admits anybody. If not,
// only the LogicalSession of the grant's generation may stay.
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
	k := keyOf(g.Instance, g.Workspace)
	r, known := b.record(k)
	if !known && b.count() >= by.MaxRecords {
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
		old = nil // it is as if it were not there; what it left has to go
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

// maxSeconds is the longest time that a Duration holds.
const maxSeconds = int64(math.MaxInt64 / time.Second)

// permits checks a grant against what was seen before.
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

// Revoke takes the grant of a workspace away, which is then among those that Due returns.
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
	k := keyOf(v.Instance, v.Workspace)
	r, known := b.record(k)
	switch {
	case v.Revision < max(r.Revision, r.Revoked):
		return Revocation{}, refuse("Sandbox admission revocation of revision %d is stale: %d was seen", v.Revision, max(r.Revision, r.Revoked))
	case !known && b.count() >= by.MaxRecords:
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
// go: of those, of the revoked and of those whose new grant begins with nothing; also of what
// an earlier process did not get done.
func (b *Book) Due() ([]Due, error) {
	b.writing.Lock()
	defer b.writing.Unlock()
	changed := map[key]record{}
	var due []Due
	now := b.now()
	b.mu.RLock()
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
	b.mu.RUnlock()
	return due, b.putAll(changed)
}

// Done says that the sessions are gone. Nothing happens if they had to go once more
// since Due, or Upsert or Revoke, said so.
func (b *Book) Done(d Due) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	k := keyOf(d.Instance, d.Workspace)
	r, _ := b.record(k)
	if !r.Dirty || r.Mark != d.mark {
		return nil
	}
	r.Dirty = false
	return b.put(k, r)
}

// DueOf returns what Due does for one workspace.
func (b *Book) DueOf(instance, workspace string) (Due, bool) {
	r, _ := b.record(keyOf(instance, workspace))
	return Due{r.Instance, r.Workspace, r.Mark}, r.Dirty
}
