package config

import (
	"errors"
	"fmt"
	"slices"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/mounts"
	"github.com/boxd/boxd/policy"
)

// validatePolicy has package policy check its part.
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

// MountRoots returns the roots of all tenants, from which the launcher must let the daemon
// mount.
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

// openRoots checks where the allowed mount roots really lead: a link to /etc is /etc. It
// leaves a root that does not exist yet, or that this process cannot see, to the launcher,
// which checks every mount.
func (c *Config) openRoots() error {
	check := func(field string, roots []string) error {
		for i, root := range roots {
			s, err := mounts.Open(engine.Mount{Source: root, Target: engine.WorkspaceTarget}, slices.Concat(c.Policy.OwnDirs, mounts.DefaultDeny))
			if bad, ok := errors.AsType[*engine.FieldError](err); ok && bad.Err == nil {
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
