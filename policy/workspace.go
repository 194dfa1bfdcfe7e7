package policy

import (
	"cmp"

	"github.com/boxd/boxd/engine/spec"
)

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
