package session

import (
	"errors"

	"github.com/boxd/boxd/audit"
	"github.com/boxd/boxd/policy"
)

// ImageChange is a change of the store of images, which a door makes and this package records.
type ImageChange struct {
	Action    string // in the audit log: "image-pull", "image-import", "image-remove", "image-gc"
	Tenant    string // of the reference; empty: it is shared
	Reference string // empty: not known before Do
	// Allow asks the policy; nil: there is none for this.
	Allow func() error
	// Do makes the change and returns the details of its event and its audit entry.
	Do    func() (map[string]any, error)
	Event EventType // empty: none
}

// ChangeImage makes a change of the store of images. The audit log has the decision before the change is made, and
// its outcome; a change that cannot be logged is refused. It returns the error of Allow or Do.
func (m *Manager) ChangeImage(c Caller, change ImageChange) error {
	key := Key{Tenant: change.Tenant}
	log := func(decision string, details map[string]any, cause error) error {
		e := audit.Entry{Action: change.Action, Decision: decision, Details: map[string]any{"image": change.Reference}}
		for name, value := range details {
			e.Details[name] = value
		}
		if cause != nil {
			e.Reason = cause.Error()
		}
		return m.audit(c, key, e)
	}
	if change.Allow != nil {
		if err := change.Allow(); err != nil {
			_ = log(audit.Deny, nil, err) // it reports its error
			return err
		}
	}
	if err := log(audit.Allow, nil, nil); err != nil {
		return err
	}
	details, err := change.Do()
	if err != nil {
		decision := audit.Failed
		if errors.Is(err, policy.ErrDenied) { // of a name that an archive has
			decision = audit.Deny
		}
		_ = log(decision, nil, err)
		return err
	}
	_ = log(audit.Done, details, nil)
	if change.Event != "" {
		m.publish(Event{Type: change.Event, Tenant: change.Tenant, Request: c.Request, Details: details})
	}
	return nil
}

// ReportImage publishes how far a pull or import is.
func (m *Manager) ReportImage(c Caller, tenant string, details map[string]any) {
	m.publish(Event{Type: EventImageProgress, Tenant: tenant, Request: c.Request, Details: details})
}
