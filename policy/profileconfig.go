package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
)

// ProfileConfig changes a built-in profile or makes a new one. Missing fields are
// those of the profile that it extends.
type ProfileConfig struct {
	// Extends names another profile. Empty: the built-in one of the same name, else
	// "default".
	Extends         string         `yaml:"extends"`
	Network         *bool          `yaml:"network"`
	CPUs            *float64       `yaml:"cpus"`
	Memory          *spec.Size     `yaml:"memory"`
	PIDs            *int64         `yaml:"pids"`
	OpenFiles       *int64         `yaml:"open_files"`
	FileSize        *spec.Size     `yaml:"file_size"`
	WritableRoot    *bool          `yaml:"writable_root"`
	TmpSize         *spec.Size     `yaml:"tmp_size"`
	UpperSize       *spec.Size     `yaml:"upper_size"`
	WorkspaceMode   *string        `yaml:"workspace_mode"`
	MountMode       *string        `yaml:"mount_mode"`
	WorkspaceSize   *spec.Size     `yaml:"workspace_size"`
	WorkspaceInodes *int64         `yaml:"workspace_inodes"`
	Timeout         *spec.Duration `yaml:"timeout"`
	IdleTTL         *spec.Duration `yaml:"idle_ttl"`
	MaxLifetime     *spec.Duration `yaml:"max_lifetime"`
	Persistent      *bool          `yaml:"persistent"`
	AllowNetwork    *bool          `yaml:"allow_network"`
	AllowPersistent *bool          `yaml:"allow_persistent"`
	Locked          *[]string      `yaml:"locked"`
	Caps            CapsConfig     `yaml:"caps"`
}

// CapsConfig changes the caps of a profile.
type CapsConfig struct {
	CPUs          *float64       `yaml:"cpus"`
	Memory        *spec.Size     `yaml:"memory"`
	PIDs          *int64         `yaml:"pids"`
	TmpSize       *spec.Size     `yaml:"tmp_size"`
	UpperSize     *spec.Size     `yaml:"upper_size"`
	WorkspaceSize *spec.Size     `yaml:"workspace_size"`
	Timeout       *spec.Duration `yaml:"timeout"`
	IdleTTL       *spec.Duration `yaml:"idle_ttl"`
	MaxLifetime   *spec.Duration `yaml:"max_lifetime"`
}

// apply returns p with what c sets put in its place.
func (c ProfileConfig) apply(p Profile) Profile {
	p = p.clone()
	set(&p.Network, c.Network)
	set(&p.CPUs, c.CPUs)
	set(&p.Memory, c.Memory)
	set(&p.PIDs, c.PIDs)
	set(&p.OpenFiles, c.OpenFiles)
	set(&p.FileSize, c.FileSize)
	set(&p.WritableRoot, c.WritableRoot)
	set(&p.TmpSize, c.TmpSize)
	set(&p.UpperSize, c.UpperSize)
	set(&p.WorkspaceMode, c.WorkspaceMode)
	set(&p.MountMode, c.MountMode)
	set(&p.WorkspaceSize, c.WorkspaceSize)
	set(&p.WorkspaceInodes, c.WorkspaceInodes)
	set(&p.Timeout, c.Timeout)
	set(&p.IdleTTL, c.IdleTTL)
	set(&p.MaxLifetime, c.MaxLifetime)
	set(&p.Persistent, c.Persistent)
	set(&p.AllowNetwork, c.AllowNetwork)
	set(&p.AllowPersistent, c.AllowPersistent)
	if c.Locked != nil {
		p.Locked = slices.Compact(slices.Sorted(slices.Values(*c.Locked)))
	}
	set(&p.Caps.CPUs, c.Caps.CPUs)
	set(&p.Caps.Memory, c.Caps.Memory)
	set(&p.Caps.PIDs, c.Caps.PIDs)
	set(&p.Caps.TmpSize, c.Caps.TmpSize)
	set(&p.Caps.UpperSize, c.Caps.UpperSize)
	set(&p.Caps.WorkspaceSize, c.Caps.WorkspaceSize)
	set(&p.Caps.Timeout, c.Caps.Timeout)
	set(&p.Caps.IdleTTL, c.Caps.IdleTTL)
	set(&p.Caps.MaxLifetime, c.Caps.MaxLifetime)
	return p
}

func set[T any](dst *T, src *T) {
	if src != nil {
		*dst = *src
	}
}

// buildProfiles returns the built-in profiles with configs on top, all checked.
func buildProfiles(configs map[string]ProfileConfig, idleTTL spec.Duration) (map[string]Profile, error) {
	b := &profileBuilder{configs: configs, builtin: builtin(idleTTL), done: builtin(idleTTL)}
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		if _, err := b.build(name, nil); err != nil {
			return nil, err
		}
	}
	return b.done, nil
}

type profileBuilder struct {
	configs map[string]ProfileConfig
	builtin map[string]Profile
	done    map[string]Profile
}

// build returns the profile called name; path are those that are being built on
// top of it.
func (b *profileBuilder) build(name string, path []string) (Profile, error) {
	field := "profiles." + name
	if !validName(name, profileNameLen, profileNameSet) {
		return Profile{}, &engine.FieldError{Field: "profiles", Value: spec.Quote(name),
			Rule: `a name must be 1 to 64 of a-z, A-Z, 0-9, "_" and "-"`}
	}
	if slices.Contains(path, name) {
		return Profile{}, &engine.FieldError{Field: field + ".extends", Value: strings.Join(append(path, name), " → "),
			Rule: "must not lead back to itself"}
	}
	base, err := b.base(name, append(path, name))
	if err != nil {
		return Profile{}, err
	}
	p := b.configs[name].apply(base)
	p.Name = name
	if err := p.validate(field); err != nil {
		return Profile{}, err
	}
	b.done[name] = p
	return p, nil
}

// base is the profile that name extends.
func (b *profileBuilder) base(name string, path []string) (Profile, error) {
	extends := b.configs[name].Extends
	if p, ok := b.builtin[name]; ok && extends == "" {
		return p, nil
	}
	if extends == "" {
		extends = DefaultProfile
	}
	if _, ok := b.configs[extends]; ok {
		return b.build(extends, path)
	}
	if p, ok := b.builtin[extends]; ok {
		return p, nil
	}
	return Profile{}, &engine.FieldError{Field: fmt.Sprintf("profiles.%s.extends", name), Value: spec.Quote(extends),
		Rule: "must be a profile of this file, or one of " + strings.Join(slices.Sorted(maps.Keys(b.builtin)), ", ")}
}
