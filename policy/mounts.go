package policy

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/pathin"
	"github.com/boxd/boxd/mounts"
)

// checkRoots refuses roots below which a mount of the host could be dangerous: those of
// [mounts.DefaultDeny] and boxd's own directories, everything below them, and everything
// that contains them. A root is only as safe as its parents: whoever can write there, or a
// box that has mounted them, can move it elsewhere.
func checkRoots(field string, roots, own []string) error {
	for i, root := range roots {
		field := fmt.Sprintf("%s[%d]", field, i)
		if err := (spec.Mount{Source: root, Target: spec.WorkspaceTarget}).Validate(); err != nil {
			if bad, ok := errors.AsType[*spec.FieldError](err); ok {
				return &spec.FieldError{Field: field, Value: bad.Value, Rule: bad.Rule}
			}
			return err
		}
		if clean := path.Clean(root); clean != root {
			return &spec.FieldError{Field: field, Value: spec.Quote(root), Rule: fmt.Sprintf("must be written as %q", clean)}
		}
		if how := touches(root, slices.Concat(mounts.DefaultDeny, own)); how != "" {
			return &spec.FieldError{Field: field, Value: spec.Quote(root), Rule: how + ", which is never mounted: use a directory apart from it"}
		}
	}
	return nil
}

// touches returns how dir relates to one of denied, as the predicate of a sentence; empty
// if it does not. Lying below "/" does not count, because everything does.
func touches(dir string, denied []string) string {
	for _, d := range denied {
		switch {
		case d == "":
		case dir == d:
			return fmt.Sprintf("is %q", d)
		case d != "/" && pathin.In(dir, d):
			return fmt.Sprintf("lies in %q", d)
		case pathin.In(d, dir):
			return fmt.Sprintf("contains %q", d)
		}
	}
	return ""
}

// resolveMounts decides about the mounts of r, and about its workspace if that is a host
// path.
func (p *Policy) resolveMounts(tenant string, profile Profile, r Request, workspaceMode, target string) ([]spec.Mount, []Decision, error) {
	var list []spec.Mount
	var decisions []Decision
	if r.Workspace != "" {
		if workspaceMode == spec.None {
			return nil, nil, &spec.FieldError{Field: "workspace", Value: spec.Quote(r.Workspace),
				Rule: `must be empty, because workspace_mode is "none"`}
		}
		m := spec.Mount{Source: r.Workspace, Target: target, ReadOnly: workspaceMode == spec.ReadOnly}
		d, err := p.allowSource(tenant, "workspace", &m)
		if err != nil {
			return nil, nil, err
		}
		list, decisions = append(list, m), append(decisions, d)
	}
	others, more, err := p.decideMounts(tenant, profile.MountMode, target, r.Mounts)
	if err != nil || list == nil {
		return others, more, err
	}
	return append(list, others...), append(decisions, more...), nil
}

// decideMounts decides about the mounts of a request. After an error, the last decision is
// the refusal.
func (p *Policy) decideMounts(tenant, mode, workspace string, asked []spec.MountWish) ([]spec.Mount, []Decision, error) {
	if len(asked) == 0 {
		return nil, nil, nil
	}
	list, decisions := make([]spec.Mount, 0, len(asked)), make([]Decision, 0, len(asked))
	for i, a := range asked {
		m, d, err := p.decideMount(tenant, mode, workspace, fmt.Sprintf("mounts[%d]", i), a)
		decisions = append(decisions, d)
		if err != nil {
			return nil, decisions, err
		}
		list = append(list, m)
	}
	return list, decisions, nil
}

// decideMount decides about a mount other than the workspace, which is at the path
// workspace. mode is the most that the profile allows; field names the mount in errors.
func (p *Policy) decideMount(tenant, mode, workspace, field string, asked spec.MountWish) (spec.Mount, Decision, error) {
	m := spec.Mount{Source: asked.Source, Target: asked.Target, ReadOnly: asked.ReadOnly || mode != spec.ReadWrite, Volume: asked.Volume, NoLinks: asked.NoLinks}
	if mode == spec.None {
		err := &DeniedError{Field: field, Value: spec.Quote(asked.Source), Rule: `the profile allows no mounts: its mount_mode is "none"`}
		return spec.Mount{}, mountDecision(m, err), err
	}
	// A mount in place of the workspace would evade the workspace's own mode.
	if asked.Target == workspace {
		err := &spec.FieldError{Field: field + ".target", Value: spec.Quote(asked.Target), Rule: `is the workspace's: use "workspace" for it`}
		return spec.Mount{}, mountDecision(m, err), err
	}
	d, err := p.allowSource(tenant, field, &m)
	if err != nil {
		return spec.Mount{}, d, err
	}
	if m.ReadOnly && !asked.ReadOnly {
		d.Rule += "; read-only by the profile's mount_mode"
	}
	return m, d, nil
}

// allowSource decides whether tenant may mount m at all, and sets the root in which it must
// stay.
func (p *Policy) allowSource(tenant, field string, m *spec.Mount) (Decision, error) {
	err := p.checkSource(tenant, field, m)
	return mountDecision(*m, err), err
}

func (p *Policy) checkSource(tenant, field string, m *spec.Mount) error {
	if err := m.Validate(); err != nil {
		return mountError(field, err)
	}
	if m.Volume != "" {
		return nil // not a path of the host
	}
	if slices.Contains(strings.Split(m.Source, "/"), "..") {
		return &spec.FieldError{Field: sourceField(field), Value: spec.Quote(m.Source), Rule: `must not contain ".."`}
	}
	m.Source = path.Clean(m.Source)
	roots := p.rules(tenant).roots
	m.Within = rootOf(cmp.Or(m.NoLinks, m.Source), roots)
	switch {
	case m.Within != "":
		if p.SensitiveRoot(m.Within) != "" && p.SensitiveRoot(m.Source) == "" {
			m.NoLinks = m.Within // a link could lead to something sensitive under another name
		}
		return nil
	case len(roots) == 0:
		return &DeniedError{Field: sourceField(field), Value: spec.Quote(m.Source),
			Rule: "no directory of the host may be mounted: allow one with allowed_mount_roots or --allow-mount-root"}
	}
	return &DeniedError{Field: sourceField(field), Value: spec.Quote(m.Source), Rule: fmt.Sprintf("must be in one of the allowed mount roots %q", roots)}
}

// rootOf returns the longest of roots that is, or contains, source; empty if there is none.
func rootOf(source string, roots []string) string {
	best := ""
	for _, root := range roots {
		if pathin.In(source, root) && len(root) > len(best) {
			best = root
		}
	}
	return best
}

// SensitiveRoot returns the sensitive mount root that source, a path of the host, is in or
// contains; empty if there is none.
func (p *Policy) SensitiveRoot(source string) string {
	for _, root := range p.config.SensitiveMountRoots {
		if pathin.Overlap(source, root) {
			return root
		}
	}
	return ""
}

// sourceField returns the field of a request that holds the source of a mount; for the
// workspace that is the field itself.
func sourceField(field string) string {
	if field == "workspace" {
		return field
	}
	return field + ".source"
}

// mountError returns err, about a mount, with the field of the request. The workspace is a
// mount whose source and target are fields of their own.
func mountError(field string, err error) error {
	if field != "workspace" {
		return spec.InMount(field, err)
	}
	bad, ok := errors.AsType[*spec.FieldError](err)
	if !ok {
		return fmt.Errorf("%s: %w", field, err)
	}
	if bad.Field == spec.MountTarget {
		field = "workspace_target"
	}
	return &spec.FieldError{Field: field, Value: bad.Value, Rule: bad.Rule}
}

func mountDecision(m spec.Mount, err error) Decision {
	d := Decision{Action: ActionMount, Allowed: err == nil, Details: map[string]any{
		"source": m.Source, "target": m.Target, "read_only": m.ReadOnly,
	}}
	if err != nil {
		d.Rule = err.Error()
		return d
	}
	d.Rule = "allowed mount root " + m.Within
	if m.Volume != "" {
		d.Rule, d.Details["volume"] = "volume of boxd's own", m.Volume
	}
	return d
}
