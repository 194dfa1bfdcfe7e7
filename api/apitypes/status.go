package apitypes

import "time"

// Status says whether the service can serve, and what it holds.
type Status struct {
	Available bool           `json:"available" doc:"True only if the daemon and its engine can serve."`
	Reason    string         `json:"reason,omitempty" doc:"Why it is not available."`
	Version   string         `json:"version"`
	Uptime    Duration       `json:"uptime" doc:"Seconds."`
	Sessions  map[string]int `json:"sessions" doc:"Sessions by state; of the caller's tenant unless all tenants are asked for."`
	Processes int            `json:"processes" doc:"Managed processes that are running."`
	Execs     int            `json:"execs" doc:"Execs that are running."`
	Engine    Health         `json:"engine"`
	Audit     *AuditHead     `json:"audit,omitempty" doc:"Head of the audit log's chain; for callers of all tenants."`
	Quota     []QuotaUse     `json:"quota,omitempty" doc:"Limits and what is in use."`
}

// Health of one part.
type Health struct {
	OK     bool   `json:"ok"`
	Reason string `json:"reason,omitempty"`
}

// AuditHead is where the audit log's hash chain stands.
type AuditHead struct {
	Sequence int64  `json:"sequence"`
	Hash     string `json:"hash"`
	OK       bool   `json:"ok"`
	Reason   string `json:"reason,omitempty" doc:"Why entries cannot be written."`
}

// QuotaUse is one limit of a tenant, or of all tenants together.
type QuotaUse struct {
	Name  string  `json:"name" doc:"sessions, processes, execs, memory, cpus or workspace_bytes."`
	Scope string  `json:"scope" doc:"tenant or global."`
	Limit float64 `json:"limit" doc:"0: none."`
	InUse float64 `json:"in_use"`
}

// ErrorRecord is something that went wrong in the daemon.
type ErrorRecord struct {
	Time    time.Time `json:"time"`
	Tenant  string    `json:"tenant,omitempty"`
	Session string    `json:"session,omitempty"`
	Box     string    `json:"box,omitempty"`
	Process string    `json:"process,omitempty"`
	Request string    `json:"request,omitempty"`
	What    string    `json:"what" doc:"What was being done."`
	Error   string    `json:"error"`
}

// ErrorList is the last errors, newest last.
type ErrorList struct {
	Errors []ErrorRecord `json:"errors"`
}

// Event is something that happened to a session or a process.
type Event struct {
	ID      uint64         `json:"id" doc:"Grows by one with each event of the daemon; starts anew with it."`
	Time    time.Time      `json:"time"`
	Type    string         `json:"type"`
	Tenant  string         `json:"tenant"`
	Session string         `json:"session,omitempty"`
	Box     string         `json:"box,omitempty"`
	Process string         `json:"process,omitempty"`
	State   string         `json:"state,omitempty"`
	Reason  string         `json:"reason,omitempty"`
	Details map[string]any `json:"details,omitempty"`
}

// Missed says how many events a subscriber did not get.
type Missed struct {
	Missed uint64 `json:"missed" doc:"Number of events; 0: unknown, the daemon has been started again."`
}

// Profile is a set of defaults, caps and locked fields.
type Profile struct {
	Name     string         `json:"name"`
	Defaults map[string]any `json:"defaults" doc:"What a request that leaves a field out gets."`
	Locked   []string       `json:"locked,omitempty" doc:"Fields that a request cannot change."`
}

// ProfileList is all profiles.
type ProfileList struct {
	Profiles []Profile `json:"profiles"`
}
