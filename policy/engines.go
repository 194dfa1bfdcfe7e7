package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/boxd/boxd/engine/spec"
)

// checkEngines checks an order of engines. field is its key in the configuration.
func checkEngines(field string, order []string) error {
	for i, name := range order {
		at := fmt.Sprintf("%s[%d]", field, i)
		if !slices.Contains(spec.Engines, name) {
			return &spec.FieldError{Field: at, Value: spec.Quote(name), Rule: "must be one of " + strings.Join(spec.Engines, ", ")}
		}
		if slices.Contains(order[:i], name) {
			return &spec.FieldError{Field: at, Value: spec.Quote(name), Rule: "is in the list twice"}
		}
	}
	return nil
}

// validateEngines checks the engines of all profiles, with those of the daemon.
func (p *Policy) validateEngines() error {
	if len(p.config.Engines) == 0 {
		p.config.Engines = []string{spec.EngineNative}
	}
	if err := checkEngines("engines", p.config.Engines); err != nil {
		return err
	}
	for _, profile := range p.Profiles() {
		field := "profiles." + profile.Name
		if err := checkEngines(field+".engines", profile.Engines); err != nil {
			return err
		}
		if profile.Engines != nil && len(profile.Engines) == 0 {
			return &spec.FieldError{Field: field + ".engines", Value: "[]", Rule: "must have at least one; leave it out for the engines of the daemon"}
		}
		for i, name := range profile.Engines {
			if !slices.Contains(p.config.Engines, name) {
				return &spec.FieldError{Field: fmt.Sprintf("%s.engines[%d]", field, i), Value: spec.Quote(name),
					Rule: fmt.Sprintf("must be one of the engines of the daemon, %s: add it to engines", strings.Join(p.config.Engines, ", "))}
			}
		}
		order := p.order(profile)
		switch {
		case !offered(order, profile.Isolation):
			return &spec.FieldError{Field: field + ".isolation", Value: spec.Quote(profile.Isolation), Rule: notOffered(order)}
		case profile.Engine != "" && !slices.Contains(order, profile.Engine):
			return &spec.FieldError{Field: field + ".engine", Value: spec.Quote(profile.Engine),
				Rule: fmt.Sprintf("must be one of the engines of its sessions, %s: name one of them, or add it to engines", strings.Join(order, ", "))}
		case profile.Engine != "" && !spec.Offers(profile.Engine, profile.Isolation):
			return &spec.FieldError{Field: field + ".engine", Value: spec.Quote(profile.Engine),
				Rule: fmt.Sprintf("does not have the isolation of the profile, %s: name another engine, or another isolation", profile.Isolation)}
		}
	}
	return nil
}

// EngineOrder returns the engines of the daemon, in the order in which they are tried.
func (p *Policy) EngineOrder() []string { return slices.Clone(p.config.Engines) }

// order returns the engines that may build boxes of profile, in the order in which they are tried.
func (p *Policy) order(profile Profile) []string {
	if profile.Engines != nil {
		return profile.Engines
	}
	return p.config.Engines
}

func offered(order []string, isolation string) bool {
	return slices.ContainsFunc(order, func(name string) bool { return spec.Offers(name, isolation) })
}

func notOffered(order []string) string {
	return fmt.Sprintf("none of its engines, %s, has this isolation: name another engine, or another isolation", strings.Join(order, ", "))
}

// Zygotes returns the interpreters that boxes of sessions of r keep warm: those that their profile has
// now. The caller must not change them.
func (p *Policy) Zygotes(r Resolved) []spec.Zygote { return p.profiles[r.Profile].Zygotes }

// Engines returns the engines that may build a box for a session of r now, in the order in which they
// are tried. Errors are *[DeniedError]: what r says may have been allowed by an earlier configuration. A
// session whose profile is gone has the engines of the daemon.
func (p *Policy) Engines(r Resolved) ([]string, error) {
	profile, ok := p.profiles[r.Profile]
	if !ok {
		profile = Profile{Name: r.Profile, Settings: spec.Settings{Isolation: spec.IsolationNamespaces}}
	}
	order := p.order(profile)
	if r.Engine != "" {
		if !slices.Contains(order, r.Engine) {
			return nil, &DeniedError{Field: "engine", Value: spec.Quote(r.Engine),
				Rule: fmt.Sprintf("sessions of profile %q may have %s: ask for one of them, or leave it out", profile.Name, strings.Join(order, ", "))}
		}
		order = []string{r.Engine}
	}
	switch {
	case spec.Weaker(r.Isolation, profile.Isolation):
		return nil, &DeniedError{Field: "isolation", Value: spec.Quote(r.Isolation),
			Rule: fmt.Sprintf("is a weaker wall than that of profile %q, %s: ask for that one, or use another profile", profile.Name, profile.Isolation)}
	case spec.Weaker(r.WeakestWall(), profile.WeakestWall()):
		return nil, &DeniedError{Field: "require", Value: "false",
			Rule: fmt.Sprintf("profile %q refuses every wall that is weaker than %s: leave it out, or use another profile", profile.Name, profile.WeakestWall())}
	case !offered(order, r.Isolation):
		return nil, &DeniedError{Field: "isolation", Value: spec.Quote(r.Isolation), Rule: notOffered(order)}
	}
	return slices.Clone(order), nil
}
