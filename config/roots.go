package config

import (
	"errors"
	"fmt"
	"slices"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/mounts"
	"github.com/boxd/boxd/policy"
)

// validatePolicy lets package policy judge its part.
func (c *Config) validatePolicy() error {
	c.Policy.IdleTTL = c.Sessions.IdleTTL
	c.Policy.OwnDirs = nil
	for _, p := range []string{c.StateDir, c.RuntimeDir, c.Socket.Path, c.Audit.File, c.TokensFile, c.TLS.Key, c.Langbot.TokenFile} {
		if p != "" {
			c.Policy.OwnDirs = append(c.Policy.OwnDirs, p)
		}
	}
	p, err := policy.New(c.Policy)
	if err != nil {
		return err
	}
	if err := c.validateLangbotPolicy(p); err != nil {
		return err
	}
	return c.openRoots()
}

// MountRoots are the roots of all tenants: what the launcher must let the daemon mount.
func (c *Config) MountRoots() []string {
	roots := slices.Clone(c.Policy.AllowedMountRoots)
	for _, t := range c.Policy.Tenants {
		if t.AllowedMountRoots != nil {
			roots = append(roots, *t.AllowedMountRoots...)
		}
	}
	slices.Sort(roots)
	return slices.Compact(roots)
}

// openRoots looks where the allowed mount roots really are: a link to /etc is /etc.
// A root that does not exist yet, or that this process may not see, is left to the
// launcher, which looks at every mount that is made.
func (c *Config) openRoots() error {
	check := func(field string, roots []string) error {
		for i, root := range roots {
			s, err := mounts.Open(engine.Mount{Source: root, Target: engine.WorkspaceTarget}, slices.Concat(c.Policy.OwnDirs, mounts.DefaultDeny))
			var bad *engine.FieldError
			if errors.As(err, &bad) && bad.Err == nil {
				return refuse(fmt.Sprintf("%s[%d]", field, i), bad.Value, bad.Rule)
			}
			if err == nil {
				s.Close()
			}
		}
		return nil
	}
	if err := check("allowed_mount_roots", c.Policy.AllowedMountRoots); err != nil {
		return err
	}
	for name, t := range c.Policy.Tenants {
		if t.AllowedMountRoots == nil {
			continue
		}
		if err := check("tenants."+name+".allowed_mount_roots", *t.AllowedMountRoots); err != nil {
			return err
		}
	}
	return nil
}
