package policy

import "github.com/boxd/boxd/engine/spec"

// workspaceTarget is where r has its workspace.
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

// Target is where the workspace is mounted, or would be.
func (r Resolved) Target() string {
	if r.WorkspaceTarget == "" {
		return spec.WorkspaceTarget
	}
	return r.WorkspaceTarget
}

// OwnWorkspace reports whether the workspace is one that boxd keeps.
func (r Resolved) OwnWorkspace() bool {
	return r.Workspace == "" && r.WorkspaceMode != spec.None
}

// WorkspaceMount mounts dir, a workspace that boxd keeps below root, by the mode of
// r, which must not be "none". Every user of the box can use it.
func (r Resolved) WorkspaceMount(dir, root string) spec.Mount {
	return spec.Mount{Source: dir, Target: r.Target(), ReadOnly: r.WorkspaceMode != spec.ReadWrite, Within: root, Users: true}
}

// VolumeMount is WorkspaceMount for a workspace that is a volume of the spec.
func (r Resolved) VolumeMount(volume string) spec.Mount {
	return spec.Mount{Source: "/", Target: r.Target(), ReadOnly: r.WorkspaceMode != spec.ReadWrite, Volume: volume, Users: true}
}
