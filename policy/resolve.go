package policy

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// Resolve fills in r from its profile and decides whether tenant may have it. A locked
// field of the profile overrides r, and Overridden names it. Timeouts are cut to the
// profile's cap; any other value above a cap is refused.
//
// A value that breaks a rule is a *[spec.FieldError]; a well-formed value that is not
// allowed is a *[DeniedError].
func (p *Policy) Resolve(tenant string, r Request) (Resolved, error) {
	if err := ValidateTenant(tenant); err != nil {
		return Resolved{}, err
	}
	profile, err := p.profile(tenant, r.Profile)
	if err != nil {
		return Resolved{}, err
	}
	if r.Image != nil && *r.Image == "" {
		r.Image = nil
	}
	if r.Image != nil {
		if image, err := spec.CheckImage("image", *r.Image); err == nil { // else check refuses it, unless it is locked
			r.Image = &image
		}
	}
	s := profile.Settings
	overridden := s.Merge(&r.Wishes, profile.Locked)
	if slices.Contains(profile.Locked, spec.NetworkRulesName) && !r.NetworkRules.Equal(nil) {
		r.NetworkRules, overridden = nil, append(overridden, spec.NetworkRulesName)
	}

	// Drop limits of the profile that have nothing to limit: inodes without a size, and both
	// if the workspace cannot be written. Keep, and so refuse, what r itself asks for. A
	// directory that boxd keeps has its limit even if the box may only read it.
	writes := s.WorkspaceMode == spec.ReadWrite || s.WorkspaceMode == spec.ReadOnly && r.Workspace == ""
	if asked := r.WorkspaceSize != nil && *r.WorkspaceSize == s.WorkspaceSize; !writes && !asked {
		s.WorkspaceSize = 0
	}
	if asked := r.WorkspaceInodes != nil && *r.WorkspaceInodes == s.WorkspaceInodes; s.WorkspaceSize == 0 && !asked {
		s.WorkspaceInodes = 0
	}

	err = profile.check(&s, writes, func(limit string) string {
		return fmt.Sprintf("ask for less, or raise profiles.%s.caps.%s", profile.Name, limit)
	})
	if err != nil {
		return Resolved{}, err
	}
	if r.Engine != nil || s.Isolation != profile.Isolation || s.Require != profile.Require {
		if _, err := p.Engines(Resolved{Profile: profile.Name, Settings: s}); err != nil {
			return Resolved{}, err
		}
	}
	if !r.HasImage {
		if err := p.mayHaveImage(tenant, &profile, s.Image); err != nil {
			return Resolved{}, err
		}
	}
	if r.NeverPull {
		s.Pull = spec.PullNever
	}
	if s.Persistent && !profile.AllowPersistent {
		return Resolved{}, &DeniedError{Field: "persistent", Value: "true",
			Rule: fmt.Sprintf("profile %q exempts nobody from the idle TTL: allow_persistent is false", profile.Name)}
	}
	if r.NetworkElse != "" {
		if s.Network = p.config.NetworkAvailable && !s.Sensitive && p.MayHaveNetwork(Resolved{Profile: profile.Name}) == nil; !s.Network {
			r.NetworkRules, r.Warnings = nil, append(slices.Clip(r.Warnings), r.NetworkElse)
		}
	}
	if s.Sensitive && s.Network {
		if r.Network != nil && *r.Network {
			return Resolved{}, &DeniedError{Field: "network", Value: "true", Rule: "a sensitive session has no network: ask for one of the two"}
		}
		s.Network = false // the profile's default
	}
	if err := p.checkNetwork(profile, s.Network); err != nil {
		return Resolved{}, err
	}
	target, err := workspaceTarget(r, s.WorkspaceMode)
	if err != nil {
		return Resolved{}, err
	}
	if r.MakeWorkspace && r.Workspace == "" {
		return Resolved{}, &spec.FieldError{Field: "workspace", Value: `""`, Rule: "must name the directory of the host that is to be made"}
	}
	list, decisions, err := p.resolveMounts(tenant, profile, r, s.WorkspaceMode, target)
	if err != nil {
		return Resolved{}, err
	}
	for i, m := range list[len(list)-len(r.Mounts):] {
		if m.ReadOnly && !r.Mounts[i].ReadOnly {
			overridden = append(overridden, fmt.Sprintf("mounts[%d].read_only", i))
		}
	}
	volumes, more, err := p.decideVolumes(tenant, "volumes", s.MountMode, target, r.Volumes)
	if err != nil {
		return Resolved{}, err
	}
	for i, m := range volumes {
		if m.ReadOnly && !r.Volumes[i].ReadOnly {
			overridden = append(overridden, fmt.Sprintf("volumes[%d].read_only", i))
		}
	}
	list, decisions = append(list, volumes...), append(decisions, more...)
	slices.Sort(overridden)
	env, err := resolveEnv(r.Env)
	if err != nil {
		return Resolved{}, err
	}
	if err := cmp.Or(spec.ValidateName(r.Name), r.Labels.Validate("labels")); err != nil {
		return Resolved{}, err
	}
	if !s.WritableRoot {
		s.UpperSize = 0
	}
	s.Timeout = clampTimeout(s.Timeout, profile.Caps.Timeout)
	decision := Decision{Action: ActionResolve, Allowed: true, Rule: "profile " + profile.Name, Details: map[string]any{"profile": profile.Name}}
	if len(overridden) > 0 {
		decision.Details["overridden"] = overridden
	}
	got := Resolved{
		Profile: profile.Name, Settings: s, Hostname: r.Hostname, Name: r.Name, Labels: maps.Clone(r.Labels), Mounts: list, AllowDegraded: p.config.AllowDegraded,
		NetworkRules: r.NetworkRules, Publish: slices.Clone(r.Publish), Workspace: r.Workspace, WorkspaceTarget: target, MakeWorkspace: r.MakeWorkspace, Env: env, TimeoutCap: max(0, profile.Caps.Timeout),
		Overridden: overridden, Warnings: r.Warnings, Decisions: append(decisions, decision),
	}
	if r.User != nil {
		got.User = *r.User
	}
	if err := p.CheckNetworkRules(tenant, got); err != nil {
		return Resolved{}, err
	}
	if err := p.CheckPublish(got); err != nil {
		return Resolved{}, err
	}
	box := got.Spec()
	if err := box.Validate(); err != nil {
		return Resolved{}, err
	}
	got.Take(box.WithDefaults())
	return got, nil
}

// profile returns the profile that tenant asks for by name; an empty name means the
// default.
func (p *Policy) profile(tenant, name string) (Profile, error) {
	allowed := p.rules(tenant).profiles
	if name == "" {
		name = p.config.DefaultProfile
		// The default of a tenant that may not use the default profile is its first one.
		if len(allowed) > 0 && !slices.Contains(allowed, name) {
			name = allowed[0]
		}
	}
	if err := p.checkProfile("profile", name); err != nil {
		return Profile{}, err
	}
	if len(allowed) > 0 && !slices.Contains(allowed, name) {
		return Profile{}, &DeniedError{Field: "profile", Value: spec.Quote(name),
			Rule: fmt.Sprintf("tenant %s may use %q", spec.Quote(tenant), allowed)}
	}
	return p.profiles[name], nil
}

// checkNetwork refuses a network that the profile or the engine does not provide: silently
// building a box without one would mislead the client.
func (p *Policy) checkNetwork(profile Profile, on bool) error {
	switch {
	case !on:
		return nil
	case !profile.AllowNetwork:
		return &DeniedError{Field: "network", Value: "true", Rule: fmt.Sprintf("profile %q has no network: allow_network is false", profile.Name)}
	case !p.config.NetworkAvailable:
		return p.noNetwork(profile.Name)
	}
	return nil
}

func (p *Policy) noNetwork(profile string) error {
	return &DeniedError{Field: "network", Value: "true", Rule: fmt.Sprintf(
		"this daemon gives no box a network (network: off in its configuration), and profile %q or the request asks for one: ask for network false, or use a profile without it", profile)}
}

// MayHaveNetwork decides whether a session of r could have a network at all, with an engine that
// has them. If its profile is gone, it could not.
func (p *Policy) MayHaveNetwork(r Resolved) error {
	profile, ok := p.profiles[r.Profile]
	if !ok {
		return &DeniedError{Field: "network", Value: "true", Rule: fmt.Sprintf("profile %q does not exist any more", r.Profile)}
	}
	if slices.Contains(profile.Locked, "network") && !profile.Network {
		return &DeniedError{Field: "network", Value: "true", Rule: fmt.Sprintf("profile %q has locked its network off", r.Profile)}
	}
	if !profile.AllowNetwork {
		return &DeniedError{Field: "network", Value: "true", Rule: fmt.Sprintf("profile %q has no network: allow_network is false", profile.Name)}
	}
	return nil
}

// maxEnv bounds the environment of a session in bytes, each variable with its "=" and NUL:
// memory, the database and the box keep it, for every session.
const maxEnv = 64 << 10

// EnvList returns env as a list of KEY=VALUE, sorted by name.
func EnvList(env map[string]string) ([]string, error) {
	list := make([]string, 0, len(env))
	for name := range env {
		list = append(list, name)
	}
	slices.Sort(list)
	for i, name := range list {
		// The engine sees only KEY=VALUE, where the name "A=B" would pass as "A".
		if name == "" || strings.ContainsAny(name, "=\x00") {
			return nil, &spec.FieldError{Field: "env", Value: spec.Quote(name), Rule: `a name must not be empty nor contain "=" or NUL`}
		}
		list[i] = name + "=" + env[name]
	}
	return list, nil
}

// resolveEnv returns env as a sorted list of KEY=VALUE that the engine accepts.
func resolveEnv(env map[string]string) ([]string, error) {
	list, err := EnvList(env)
	if err != nil {
		return nil, err
	}
	size := 0
	for _, variable := range list {
		size += len(variable) + 1
	}
	if size > maxEnv {
		return nil, &spec.FieldError{Field: "env", Value: fmt.Sprintf("(%d bytes)", size),
			Rule: fmt.Sprintf("must have at most %d bytes together: give what is longer to each command, or put it into a file", maxEnv)}
	}
	if err := (engine.Command{Args: []string{"true"}, Env: list}).Validate(); err != nil {
		return nil, err
	}
	return list, nil
}
