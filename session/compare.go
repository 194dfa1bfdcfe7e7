package session

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// conflicts are the fields in which a session that has have differs from what a asks
// for explicitly, sorted. Mounts are not among them: they are changed live. What a
// leaves open is not compared, so a bare request fits every session.
func conflicts(have policy.Resolved, a *asked) []Conflict {
	r, want := &a.request, a.resolved
	var list []Conflict
	field := func(name string, given bool, have, want any) {
		if given && have != want {
			list = append(list, Conflict{name, show(have), show(want)})
		}
	}
	field("cpus", r.CPUs != nil, have.Spec.Limits.CPUs, want.Spec.Limits.CPUs)
	if r.Env != nil && !slices.Equal(have.Env, want.Env) {
		list = append(list, envConflict(have.Env, want.Env))
	}
	field("hostname", r.Hostname != "", have.Spec.Hostname, want.Spec.Hostname)
	field("idle_ttl", r.IdleTTL != nil, have.IdleTTL, want.IdleTTL)
	field("image", r.Image != "", have.Spec.Image, want.Spec.Image)
	field("max_lifetime", r.MaxLifetime != nil, have.MaxLifetime, want.MaxLifetime)
	field("memory", r.Memory != nil, size(have.Spec.Limits.Memory), size(want.Spec.Limits.Memory))
	field("network", r.Network != nil, have.Network, want.Network)
	field("persistent", r.Persistent != nil, have.Persistent, want.Persistent)
	field("pids", r.PIDs != nil, have.Spec.Limits.PIDs, want.Spec.Limits.PIDs)
	field("profile", r.Profile != "", have.Profile, want.Profile)
	field("timeout", r.Timeout != nil, have.Timeout, want.Timeout)
	field("tmp_size", r.TmpSize != nil, size(have.Spec.TmpSize), size(want.Spec.TmpSize))
	field("upper_size", r.UpperSize != nil, size(have.Spec.UpperSize), size(want.Spec.UpperSize))
	field("user", r.User != nil, have.Spec.User, want.Spec.User)
	field("workspace", r.Workspace != "", have.Workspace, want.Workspace)
	field("workspace_inodes", r.WorkspaceInodes != nil, have.WorkspaceInodes, want.WorkspaceInodes)
	field("workspace_mode", r.WorkspaceMode != nil, have.WorkspaceMode, want.WorkspaceMode)
	field("workspace_size", r.WorkspaceSize != nil, size(have.WorkspaceSize), size(want.WorkspaceSize))
	field("workspace_target", r.WorkspaceTarget != "", have.Target(), want.Target())
	field("writable_root", r.WritableRoot != nil, have.Spec.WritableRoot, want.Spec.WritableRoot)
	return list
}

// size is a number of bytes that shows as one.
type size int64

// show writes a value of a field for people.
func show(v any) string {
	switch v := v.(type) {
	case size:
		if v < 0 {
			return "unlimited"
		}
		return spec.FormatSize(int64(v))
	case string:
		return spec.Quote(v)
	case engine.User:
		return fmt.Sprintf("%d:%d", v.UID, v.GID)
	case time.Duration:
		return v.String()
	}
	return fmt.Sprint(v)
}

// envConflict names the variables that differ; values are often secret.
func envConflict(have, want []string) Conflict {
	return Conflict{"env", names(have, want), names(want, have)}
}

// names lists the variables of list that other does not have with the same value.
func names(list, other []string) string {
	var differ []string
	for _, kv := range list {
		if !slices.Contains(other, kv) {
			name, _, _ := strings.Cut(kv, "=")
			differ = append(differ, name)
		}
	}
	if len(differ) == 0 {
		return "without them"
	}
	return "with its own " + strings.Join(differ, " ")
}
