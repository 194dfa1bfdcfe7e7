package policy

import (
	"fmt"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// dropIdleLimits takes back limits of the profile that have nothing to limit: inodes
// without a size, and both where the workspace of r cannot be written. What r itself
// asks for is left, and refused.
func (v *values) dropIdleLimits(r Request) {
	// A directory that boxd keeps is limited also if the box may only read it.
	v.writesWorkspace = v.workspaceMode == WorkspaceRW || v.workspaceMode == WorkspaceRO && r.Workspace == ""
	if !v.writesWorkspace && !asksFor(r.WorkspaceSize, v.workspaceSize) {
		v.workspaceSize = 0
	}
	if v.workspaceSize == 0 && !asksFor(r.WorkspaceInodes, v.workspaceInodes) {
		v.workspaceInodes = 0
	}
}

// asksFor reports whether v is what was asked for, and not only what the profile has.
func asksFor[T comparable](asked *T, v T) bool { return asked != nil && *asked == v }

// bytesPerInode is the least for which there can be an inode: what file systems keep of
// each is not counted in the size, and so bounded by it.
const bytesPerInode = 1 << 10

// validateWorkspaceSize checks the hard limits of the workspace.
func (v values) validateWorkspaceSize() error {
	size, inodes := int64(v.workspaceSize), v.workspaceInodes
	bad := func(field, value, rule string, args ...any) error {
		return &engine.FieldError{Field: field, Value: value, Rule: fmt.Sprintf(rule, args...)}
	}
	switch {
	case size != 0 && (size < engine.MinVolumeBytes || size > engine.MaxVolumeBytes):
		return bad("workspace_size", spec.FormatSize(size), "must be %s to %s, or 0 for no hard limit",
			spec.FormatSize(engine.MinVolumeBytes), spec.FormatSize(engine.MaxVolumeBytes))
	case inodes != 0 && (inodes < engine.MinVolumeInodes || inodes > engine.MaxVolumeInodes):
		return bad("workspace_inodes", fmt.Sprint(inodes), "must be %d to %d, or 0 for a number that follows from workspace_size",
			engine.MinVolumeInodes, int64(engine.MaxVolumeInodes))
	case inodes != 0 && size == 0:
		return bad("workspace_inodes", fmt.Sprint(inodes), "needs a workspace_size, which is the other half of a hard limit: set both, or neither")
	case inodes > size/bytesPerInode:
		return bad("workspace_inodes", fmt.Sprint(inodes), "must be at most %d, one for each KiB of workspace_size: ask for fewer, or for more space", size/bytesPerInode)
	case size != 0 && !v.writesWorkspace:
		return bad("workspace_size", spec.FormatSize(size), "must be 0, because nothing can be written in this workspace: its workspace_mode is %q", v.workspaceMode)
	}
	return nil
}

func workspaceSizeText(n spec.Size) string {
	if n == 0 {
		return "0 (no hard limit)"
	}
	return spec.FormatSize(int64(n))
}

// workspaceTarget is where r has its workspace.
func workspaceTarget(r Request, mode string) (string, error) {
	switch {
	case r.WorkspaceTarget == "":
		return engine.WorkspaceTarget, nil
	case mode == WorkspaceNone:
		return "", &engine.FieldError{Field: "workspace_target", Value: spec.Quote(r.WorkspaceTarget),
			Rule: `must be empty, because workspace_mode is "none"`}
	}
	if err := (engine.Mount{Source: "/", Target: r.WorkspaceTarget}).Validate(); err != nil {
		return "", mountError("workspace", err)
	}
	return r.WorkspaceTarget, nil
}

// checkMake refuses to make a workspace that is not of the host.
func checkMake(r Request) error {
	if r.MakeWorkspace && r.Workspace == "" {
		return &engine.FieldError{Field: "workspace", Value: `""`, Rule: "must name the directory of the host that is to be made"}
	}
	return nil
}

// Target is where the workspace is mounted, or would be.
func (r Resolved) Target() string {
	if r.WorkspaceTarget == "" {
		return engine.WorkspaceTarget
	}
	return r.WorkspaceTarget
}

// OwnWorkspace reports whether the workspace is one that boxd keeps.
func (r Resolved) OwnWorkspace() bool {
	return r.Workspace == "" && r.WorkspaceMode != WorkspaceNone
}

// WorkspaceMount mounts dir, a workspace that boxd keeps below root, by the mode of
// r, which must not be "none". Every user of the box can use it.
func (r Resolved) WorkspaceMount(dir, root string) engine.Mount {
	return engine.Mount{Source: dir, Target: r.Target(), ReadOnly: r.WorkspaceMode != WorkspaceRW, Within: root, Users: true}
}

// VolumeMount is WorkspaceMount for a workspace that is a volume of the engine.
func (r Resolved) VolumeMount(volume string) engine.Mount {
	return engine.Mount{Source: "/", Target: r.Target(), ReadOnly: r.WorkspaceMode != WorkspaceRW, Volume: volume, Users: true}
}
