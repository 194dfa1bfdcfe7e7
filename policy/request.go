package policy

import (
	"cmp"

	"github.com/boxd/boxd/engine/spec"
)

// Request is what a client asks for, and what only code of the daemon can add. Nil and
// empty fields are filled in from the profile.
type Request struct {
	spec.Wishes
	// Scope is a template of the session's ID, such as "{launcher_type}_{launcher_id}";
	// Variables are its values. See [ScopeID].
	Scope     string            `json:"scope,omitempty"`
	Variables map[string]string `json:"variables,omitempty"`
	// TokenScope and DoorScope are defaults of Scope. The token's counts before the profile's, the
	// door's after it.
	TokenScope, DoorScope string `json:"-"`
	// StrictScope: a scope whose {name} has no variable is refused, whatever the tenant's strict_scopes is.
	StrictScope bool `json:"-"`

	// MakeWorkspace creates a missing Workspace, with the owner of its parent directory.
	MakeWorkspace bool `json:"-"`
	// NeverPull replaces the profile's pull by never.
	NeverPull bool `json:"-"`
	// NetworkElse, if not empty, asks for a network if the session may have one, and is the warning
	// if it may not. NetworkRules and other wishes for the network are dropped then.
	NetworkElse string `json:"-"`
	// HasImage: the request changes a session, whose image was decided before.
	HasImage bool `json:"-"`
	// Warnings say, one line each, what the caller wanted and had to do without. [Resolved]
	// returns them.
	Warnings []string `json:"-"`
}

// Resolved is a request that was allowed, with all defaults filled in.
type Resolved struct {
	Profile string `json:"profile"`
	// Settings: UpperSize is 0 without a writable root, WorkspaceSize and WorkspaceInodes
	// are 0 if the workspace cannot be written.
	// Image is "host", or the full reference of an image.
	spec.Settings
	Hostname string `json:"hostname"`
	// Name and Labels are for people and their programs; nothing depends on them.
	Name   string      `json:"name,omitempty"`
	Labels spec.Labels `json:"labels,omitempty"`
	User   spec.User   `json:"user"`
	// Mounts has every mount of the request; a workspace that is a host path comes first.
	// The session adds a workspace that boxd keeps, with [Resolved.WorkspaceMount].
	Mounts        []spec.Mount `json:"mounts,omitempty"`
	AllowDegraded bool         `json:"allow_degraded,omitempty"`
	Workspace     string       `json:"workspace,omitempty"` // host path; empty: boxd keeps the workspace
	// WorkspaceTarget is where the workspace is mounted; empty in old records, from before
	// there was a choice. See [Resolved.Target].
	WorkspaceTarget string `json:"workspace_target,omitempty"`
	// MakeWorkspace creates a missing Workspace.
	MakeWorkspace bool     `json:"make_workspace,omitempty"`
	Env           []string `json:"env,omitempty"` // KEY=VALUE, sorted
	// NetworkRules narrow those of the profile; nil: not at all.
	NetworkRules *spec.NetworkRules `json:"network_rules,omitempty"`
	// Publish are the ports to publish, as they were asked for.
	Publish    []spec.PublishWish `json:"publish,omitempty"`
	TimeoutCap spec.Duration      `json:"timeout_cap"` // of any command; 0: none
	// Overridden are, sorted, the fields of the request that the profile has overridden
	// because it locks them: "network", "mounts[0].read_only".
	Overridden []string `json:"overridden,omitempty"`
	// Warnings are those of the request.
	Warnings []string `json:"warnings,omitempty"`
	// Decisions are those made on the way, for the audit log.
	Decisions []Decision `json:"-"`
}

// Spec returns the box that r describes, without the layers of its image. It shares its mounts
// with r.
func (r Resolved) Spec() spec.Spec {
	s := r.Settings.Spec()
	if r.Image == spec.HostImage {
		s.Image = r.Image
	}
	s.Hostname, s.User, s.Mounts, s.AllowDegraded = r.Hostname, r.User, r.Mounts, r.AllowDegraded
	return s
}

// Take sets what r shares with the spec of a box to the values of s. It does not change the
// image unless r has none.
func (r *Resolved) Take(s spec.Spec) {
	r.Settings.Take(s)
	r.Image = cmp.Or(r.Image, s.Image)
	r.Hostname, r.User, r.Mounts, r.AllowDegraded = s.Hostname, s.User, s.Mounts, s.AllowDegraded
}

// workspaceTarget returns where r has its workspace.
func workspaceTarget(r Request, mode string) (string, error) {
	switch {
	case r.WorkspaceTarget == "":
		return spec.WorkspaceTarget, nil
	case mode == spec.None:
		return "", &spec.FieldError{Field: "workspace_target", Value: spec.Quote(r.WorkspaceTarget),
			Rule: `must be empty, because workspace_mode is "none"`}
	}
	if err := (spec.Mount{Source: "/", Target: r.WorkspaceTarget}).Validate(); err != nil {
		return "", mountError("workspace", err)
	}
	return r.WorkspaceTarget, nil
}

// Target returns where the workspace is mounted, or would be.
func (r Resolved) Target() string {
	return cmp.Or(r.WorkspaceTarget, spec.WorkspaceTarget)
}

// OwnWorkspace reports whether boxd keeps the workspace.
func (r Resolved) OwnWorkspace() bool {
	return r.Workspace == "" && r.WorkspaceMode != spec.None
}

// WorkspaceMount returns the mount of dir, a workspace that boxd keeps below root. Its mode
// is that of r, which must not be "none"; every user of the box can use it.
func (r Resolved) WorkspaceMount(dir, root string) spec.Mount {
	return spec.Mount{Source: dir, Target: r.Target(), ReadOnly: r.WorkspaceMode != spec.ReadWrite, Within: root, Users: true}
}

// VolumeMount is WorkspaceMount for a workspace that is a volume.
func (r Resolved) VolumeMount(volume string) spec.Mount {
	return spec.Mount{Source: "/", Target: r.Target(), ReadOnly: r.WorkspaceMode != spec.ReadWrite, Volume: volume, Users: true}
}
