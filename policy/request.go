package policy

import "github.com/boxd/boxd/engine/spec"

// Request is what a client asks for, and what only code of the daemon can say beside it.
// Nil and empty fields are filled in from the profile.
type Request struct {
	spec.Wishes
	// Scope is a template of the session's id, such as
	// "{launcher_type}_{launcher_id}"; Variables are its values. See [ScopeID].
	Scope     string            `json:"scope,omitempty"`
	Variables map[string]string `json:"variables,omitempty"`

	// MakeWorkspace makes a Workspace that is missing, as the owner of the directory
	// above it.
	MakeWorkspace bool `json:"-"`
	// Warnings say what the caller lacks of what it really wants, one line each. They come
	// back in [Resolved].
	Warnings []string `json:"-"`
}

// Resolved is a request that was allowed, with nothing left open.
type Resolved struct {
	Profile string `json:"profile"`
	// Settings: UpperSize is 0 without a writable root, WorkspaceSize and
	// WorkspaceInodes where nothing can be written.
	spec.Settings
	Image    string    `json:"image"`
	Hostname string    `json:"hostname"`
	User     spec.User `json:"user"`
	// Mounts has every mount of the request, the workspace only if it is a host path
	// (the first one then). A workspace of boxd's own is added by the session, with
	// [Resolved.WorkspaceMount].
	Mounts        []spec.Mount `json:"mounts,omitempty"`
	AllowDegraded bool         `json:"allow_degraded,omitempty"`
	Workspace     string       `json:"workspace,omitempty"` // host path; empty: one of boxd's own
	// WorkspaceTarget is where the workspace is mounted; empty in what was written before
	// there was a choice. See [Resolved.Target].
	WorkspaceTarget string `json:"workspace_target,omitempty"`
	// MakeWorkspace makes a Workspace that is missing.
	MakeWorkspace bool          `json:"make_workspace,omitempty"`
	Env           []string      `json:"env,omitempty"` // KEY=VALUE, sorted
	TimeoutCap    spec.Duration `json:"timeout_cap"`   // of any command; 0: none
	// Overridden are the fields of the request whose value was replaced because the
	// profile locks them, such as "network" or "mounts[0].read_only", sorted.
	Overridden []string `json:"overridden,omitempty"`
	// Warnings are those of the request.
	Warnings []string `json:"warnings,omitempty"`
	// Decisions are what was decided on the way, for the audit log.
	Decisions []Decision `json:"-"`
}

// Spec is the box that r describes. It shares its mounts with r.
func (r Resolved) Spec() spec.Spec {
	s := r.Settings.Spec()
	s.Image, s.Hostname, s.User, s.Mounts, s.AllowDegraded = r.Image, r.Hostname, r.User, r.Mounts, r.AllowDegraded
	return s
}

// Take makes r the session of a box that was made of s.
func (r *Resolved) Take(s spec.Spec) {
	r.Settings.Take(s)
	r.Image, r.Hostname, r.User, r.Mounts, r.AllowDegraded = s.Image, s.Hostname, s.User, s.Mounts, s.AllowDegraded
}
