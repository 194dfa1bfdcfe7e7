package session

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// conflicts returns the fields, sorted, in which a session with the settings have differs
// from what a explicitly asks for. It ignores mounts, which can change live, a wish to become sensitive, and whatever a
// leaves open, so a bare request fits every session.
func conflicts(have policy.Resolved, a *asked) []Conflict {
	r, want := &a.request, a.resolved
	var list []Conflict
	field := func(name, asked, have, want string) {
		if asked != "" && have != want {
			list = append(list, Conflict{name, spec.Quote(have), spec.Quote(want)})
		}
	}
	for _, t := range spec.Table {
		if t.Name == "sensitive" && want.Sensitive {
			continue // a live session can become sensitive
		}
		is, wants := t.Of(&have.Settings), t.Of(&want.Settings)
		if t.Asked(&r.Wishes).IsValid() && !is.Equal(wants) {
			list = append(list, Conflict{t.Name, t.Text(is), t.Text(wants)})
		}
	}
	if r.Env != nil && !slices.Equal(have.Env, want.Env) {
		// By name only: values are often secret.
		list = append(list, Conflict{"env", differingNames(have.Env, want.Env), differingNames(want.Env, have.Env)})
	}
	if r.NetworkRules != nil && r.NetworkElse == "" && !have.NetworkRules.Equal(want.NetworkRules) {
		show := func(n *spec.NetworkRules) string {
			if n == nil {
				return "those of the profile"
			}
			return fmt.Sprintf("allow %q, deny %q, limits %+v", n.Allow, n.Deny, n.Limits)
		}
		list = append(list, Conflict{"network_rules", show(have.NetworkRules), show(want.NetworkRules)})
	}
	if r.Publish != nil && !slices.Equal(have.Publish, want.Publish) {
		list = append(list, Conflict{"publish", fmt.Sprint(have.Publish), fmt.Sprint(want.Publish)})
	}
	field("hostname", r.Hostname, have.Hostname, want.Hostname)
	field("profile", r.Profile, have.Profile, want.Profile)
	field("workspace", r.Workspace, have.Workspace, want.Workspace)
	field("workspace_target", r.WorkspaceTarget, have.Target(), want.Target())
	field("name", r.Name, have.Name, want.Name)
	for _, key := range slices.Sorted(maps.Keys(r.Labels)) {
		if value, ok := have.Labels[key]; !ok || value != r.Labels[key] {
			list = append(list, Conflict{"labels." + key, spec.Quote(value), spec.Quote(r.Labels[key])})
		}
	}
	if r.User != nil && have.User != want.User {
		show := func(u engine.User) string { return fmt.Sprintf("%d:%d", u.UID, u.GID) }
		list = append(list, Conflict{"user", show(have.User), show(want.User)})
	}
	slices.SortFunc(list, func(a, b Conflict) int { return strings.Compare(a.Field, b.Field) })
	return list
}

// differingNames lists the variables of list that other does not have with the same value.
func differingNames(list, other []string) string {
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
