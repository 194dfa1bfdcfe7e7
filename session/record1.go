package session

import (
	"encoding/json"
	"time"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// resolved1 is policy.Resolved in databases of version 1 and in labels of that time: it has
// the spec of the box in a field of its own, and times in nanoseconds.
type resolved1 struct {
	policy.Resolved
	Spec        *spec.Spec    `json:"spec"`
	IdleTTL     time.Duration `json:"idle_ttl"`
	MaxLifetime time.Duration `json:"max_lifetime"`
	Timeout     time.Duration `json:"timeout"`
	TimeoutCap  time.Duration `json:"timeout_cap"`
}

// UnmarshalJSON reads a record of this version or of version 1.
func (r *sessionRecord) UnmarshalJSON(b []byte) error {
	type plain sessionRecord
	var old struct {
		Resolved struct{ Spec json.RawMessage }
	}
	if err := json.Unmarshal(b, &old); err != nil {
		return err
	}
	if old.Resolved.Spec == nil {
		return json.Unmarshal(b, (*plain)(r))
	}
	var v1 struct {
		plain
		Resolved resolved1 `json:"resolved"`
	}
	if err := json.Unmarshal(b, &v1); err != nil {
		return err
	}
	*r = sessionRecord(v1.plain)
	o := v1.Resolved
	r.Resolved = o.Resolved
	if o.Spec != nil {
		r.Resolved.Take(*o.Spec)
	}
	s := &r.Resolved.Settings
	s.IdleTTL, s.MaxLifetime, s.Timeout = spec.Duration(o.IdleTTL), spec.Duration(o.MaxLifetime), spec.Duration(o.Timeout)
	r.Resolved.TimeoutCap = spec.Duration(o.TimeoutCap)
	return nil
}
