package policy

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// Resolve fills in r from its profile and decides whether tenant may have it. A
// locked field of the profile wins over r, which Overridden tells. Timeouts are cut
// to the profile's cap; any other value above a cap is refused.
//
// A value that breaks a rule is an *[engine.FieldError]; what is well-formed but not
// allowed is a *[DeniedError].
func (p *Policy) Resolve(tenant string, r Request) (Resolved, error) {
	if err := ValidateTenant(tenant); err != nil {
		return Resolved{}, err
	}
	profile, err := p.profile(tenant, r.Profile)
	if err != nil {
		return Resolved{}, err
	}
	v, overridden := profile.merge(r)
	if err := profile.check(v); err != nil {
		return Resolved{}, err
	}
	if err := p.checkNetwork(profile, v.network); err != nil {
		return Resolved{}, err
	}
	target, err := workspaceTarget(r, v.workspaceMode)
	if err != nil {
		return Resolved{}, err
	}
	if err := checkMake(r); err != nil {
		return Resolved{}, err
	}
	list, decisions, err := p.resolveMounts(tenant, profile, r, v.workspaceMode, target)
	if err != nil {
		return Resolved{}, err
	}
	overridden = append(overridden, madeReadOnly(r.Mounts, list)...)
	slices.Sort(overridden)
	env, err := resolveEnv(r.Env)
	if err != nil {
		return Resolved{}, err
	}
	spec := v.spec()
	spec.Image, spec.Hostname, spec.Mounts, spec.AllowDegraded = r.Image, r.Hostname, list, p.config.AllowDegraded
	if r.User != nil {
		spec.User = *r.User
	}
	if err := spec.Validate(); err != nil {
		return Resolved{}, err
	}
	return Resolved{
		Profile: profile.Name, Spec: spec.WithDefaults(), Network: v.network,
		WorkspaceMode: v.workspaceMode, Workspace: r.Workspace, WorkspaceTarget: target, MakeWorkspace: r.MakeWorkspace,
		WorkspaceSize: int64(v.workspaceSize), WorkspaceInodes: v.workspaceInodes, Env: env,
		IdleTTL: time.Duration(v.idleTTL), MaxLifetime: time.Duration(v.maxLifetime), Persistent: v.persistent,
		Timeout:    clampTimeout(time.Duration(v.timeout), time.Duration(profile.Caps.Timeout)),
		TimeoutCap: max(0, time.Duration(profile.Caps.Timeout)),
		Overridden: overridden, Warnings: r.Warnings, MountMode: profile.MountMode,
		Decisions: append(decisions, resolveDecision(profile, overridden)),
	}, nil
}

// madeReadOnly names those of asked that are read-only in list, which ends in them,
// although nobody asked for that.
func madeReadOnly(asked []Mount, list []engine.Mount) (fields []string) {
	list = list[len(list)-len(asked):]
	for i, m := range asked {
		if list[i].ReadOnly && !m.ReadOnly {
			fields = append(fields, fmt.Sprintf("mounts[%d].read_only", i))
		}
	}
	return fields
}

// profile finds the profile that tenant asks for by name; empty is the default.
func (p *Policy) profile(tenant, name string) (Profile, error) {
	allowed := p.rules(tenant).profiles
	if name == "" {
		name = p.config.DefaultProfile
		// A tenant that may not use the default one has the first of its own.
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

// check decides on the values of a request.
func (p Profile) check(v values) error {
	err := p.checkCaps(v, func(limit string) string {
		return fmt.Sprintf("ask for less, or raise profiles.%s.caps.%s", p.Name, limit)
	})
	if err != nil {
		return err
	}
	if v.persistent && !p.AllowPersistent {
		return &DeniedError{Field: "persistent", Value: "true", Rule: fmt.Sprintf("profile %q exempts nobody from the idle TTL: allow_persistent is false", p.Name)}
	}
	return nil
}

// checkNetwork refuses a network that the profile or the engine does not have: a
// box without the network that was asked for would be a lie.
func (p *Policy) checkNetwork(profile Profile, on bool) error {
	switch {
	case !on:
		return nil
	case !profile.AllowNetwork:
		return &DeniedError{Field: "network", Value: "true", Rule: fmt.Sprintf("profile %q has no network: allow_network is false", profile.Name)}
	case !p.config.NetworkAvailable:
		return &DeniedError{Field: "network", Value: "true", Rule: fmt.Sprintf(
			"this engine cannot give a box a network, and profile %q or the request asks for one: ask for network false, or use a profile without it", profile.Name)}
	}
	return nil
}

// CheckNetworkChange decides about changing the network of a live session: it can be
// turned off, never on, because what ran without a network may have relied on that.
func CheckNetworkChange(old, new bool) error {
	if new && !old {
		return &DeniedError{Field: "network", Value: "true", Rule: "a live session can only lose its network: remove the session and create it with network true"}
	}
	return nil
}

// maxEnv bounds the environment of a session in bytes, each variable with its "=" and
// NUL: it is kept in memory, in the database and with the box, for every session.
const maxEnv = 64 << 10

// resolveEnv returns env as sorted KEY=VALUE, by the engine's rules.
func resolveEnv(env map[string]string) ([]string, error) {
	list := make([]string, 0, len(env))
	size := 0
	for _, key := range slices.Sorted(maps.Keys(env)) {
		// The engine sees KEY=VALUE only, in which "A=B" would pass as a key.
		if key == "" || !validEnvKey(key) {
			return nil, &engine.FieldError{Field: "env", Value: spec.Quote(key), Rule: `a name must not be empty nor contain "=" or NUL`}
		}
		list = append(list, key+"="+env[key])
		size += len(key) + len(env[key]) + 2
	}
	if size > maxEnv {
		return nil, &engine.FieldError{Field: "env", Value: fmt.Sprintf("(%d bytes)", size),
			Rule: fmt.Sprintf("must have at most %d bytes together: give what is longer to each command, or put it into a file", maxEnv)}
	}
	if err := (engine.Command{Args: []string{"true"}, Env: list}).Validate(); err != nil {
		return nil, err
	}
	return list, nil
}

func validEnvKey(key string) bool {
	for _, c := range []byte(key) {
		if c == '=' || c == 0 {
			return false
		}
	}
	return true
}
