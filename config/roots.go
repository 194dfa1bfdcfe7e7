package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"

	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/internal/pathin"
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
	for _, r := range c.Images.Registries {
		if r.LoginFile != "" {
			c.Policy.OwnDirs = append(c.Policy.OwnDirs, r.LoginFile)
		}
	}
	c.Policy.OwnDirs = append(c.Policy.OwnDirs, c.NetworkSecrets()...)
	for _, source := range c.WebhookSources() {
		if source.File != "" {
			c.Policy.OwnDirs = append(c.Policy.OwnDirs, source.File)
		}
	}
	p, err := policy.New(c.Policy)
	if err != nil {
		return err
	}
	if err := c.validateLangbotPolicy(p); err != nil {
		return err
	}
	if name := c.MCP.Profile; name != "" && !slices.ContainsFunc(p.Profiles(), func(one policy.Profile) bool { return one.Name == name }) {
		return refuse("mcp.profile", spec.Quote(name), "must be the name of a profile")
	}
	for server, s := range c.MCPServers {
		for key, name := range map[string]string{"profile": s.Profile, "install_profile": s.InstallProfile} {
			if name != "" && !slices.ContainsFunc(p.Profiles(), func(one policy.Profile) bool { return one.Name == name }) {
				return refuse("mcp_servers."+server+"."+key, spec.Quote(name), "must be the name of a profile")
			}
		}
	}
	return c.openRoots()
}

// NetworkSources returns where the proxies of boxes read secrets: logins of upstream proxies and values
// to inject. The key is the one in the configuration file.
func (c *Config) NetworkSources() map[string]rules.Source {
	all := map[string]rules.Source{}
	add := func(field string, list []rules.Inject) {
		for i, in := range list {
			all[fmt.Sprintf("%s.network_rules.inject[%d].value_from", field, i)] = in.ValueFrom
		}
	}
	for name, p := range c.Policy.Profiles {
		field := "profiles." + name
		if f := p.NetworkRules.UpstreamLogin; f != nil && *f != "" {
			all[field+".network_rules.upstream_login"] = rules.Source{File: *f}
		}
		if list := p.NetworkRules.Inject; list != nil {
			add(field, *list)
		}
	}
	for name, t := range c.Policy.Tenants {
		add("tenants."+name, t.NetworkRules.Inject)
	}
	return all
}

// NetworkSecrets returns the files of NetworkSources, sorted.
func (c *Config) NetworkSecrets() (files []string) {
	for _, s := range c.NetworkSources() {
		if s.File != "" {
			files = append(files, s.File)
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
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
		return c.seeThrough(field, roots)
	}
	for i, root := range c.Policy.SensitiveMountRoots {
		if real, err := filepath.EvalSymlinks(root); err == nil && real != root {
			return refuse(fmt.Sprintf("sensitive_mount_roots[%d]", i), spec.Quote(root), fmt.Sprintf("must be named by its real path, %q", real))
		}
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

// seeThrough refuses roots that lead, by a symlink, to something sensitive under another name.
func (c *Config) seeThrough(field string, roots []string) error {
	for i, root := range roots {
		real, err := filepath.EvalSymlinks(root)
		if err != nil || real == root {
			continue
		}
		for _, sensitive := range c.Policy.SensitiveMountRoots {
			if pathin.Overlap(real, sensitive) {
				return refuse(fmt.Sprintf("%s[%d]", field, i), spec.Quote(root), fmt.Sprintf("leads to %q, which sensitive_mount_roots names: name the real path", real))
			}
		}
	}
	return nil
}
