package policy

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/boxd/boxd/engine/spec"
)

// ProfileConfig changes a built-in profile or creates a new one. Missing fields have the
// values of the profile that it extends.
type ProfileConfig struct {
	// Extends names another profile. Empty: the built-in one of the same name, or else
	// "default".
	Extends     string `yaml:"extends"`
	spec.Wishes `yaml:",inline"`
	// Requests do not have OpenFiles, FileSize, MountMode and Pull.
	OpenFiles       *int64         `yaml:"open_files"`
	FileSize        *spec.Size     `yaml:"file_size"`
	MountMode       *string        `yaml:"mount_mode"`
	Pull            *string        `yaml:"pull"`
	Images          *[]string      `yaml:"images"`
	Engines         *[]string      `yaml:"engines"`
	Zygotes         *[]spec.Zygote `yaml:"zygotes"`
	ImageDigests    *bool          `yaml:"image_digests"`
	AllowNetwork    *bool          `yaml:"allow_network"`
	NetworkRules    NetworkConfig  `yaml:"network_rules"`
	AllowPublish    *bool          `yaml:"allow_publish"`
	AllowPersistent *bool          `yaml:"allow_persistent"`
	Scope           *string        `yaml:"scope"`
	KeepArgv        *string        `yaml:"keep_argv"`
	KeepOutput      *spec.Size     `yaml:"keep_output"`
	Locked          *[]string      `yaml:"locked"`
	Caps            spec.CapWishes `yaml:"caps"`
	// Languages change languages of the extended profile, and add others.
	Languages map[string]LanguageConfig `yaml:"languages"`
}

// apply returns p with the values that c sets.
func (c ProfileConfig) apply(p Profile) Profile {
	p = p.clone()
	for name, l := range c.Languages {
		l.apply(p.CodeLanguages, name)
	}
	spec.CopyFields(&p, c)
	spec.CopyFields(&p.Caps, c.Caps)
	c.NetworkRules.apply(&p.NetworkRules)
	for _, cap := range []*spec.Duration{&p.Caps.Timeout, &p.Caps.IdleTTL, &p.Caps.MaxLifetime} {
		*cap = max(*cap, unlimitedTime) // every negative value means no cap
	}
	if image, err := spec.CheckImage("image", p.Image); err == nil { // else validate refuses it
		p.Image = image
	}
	if c.Images != nil {
		p.Images = append([]string{}, *c.Images...) // an empty list allows none; validate changes it
	}
	p.Locked = slices.Compact(slices.Sorted(slices.Values(p.Locked)))
	return p
}

// buildProfiles returns the built-in profiles, changed and extended by configs. It checks
// all of them.
func buildProfiles(configs map[string]ProfileConfig, languages map[string]LanguageConfig, idleTTL spec.Duration) (map[string]Profile, error) {
	ships := builtin(idleTTL)
	for name, p := range ships {
		p = p.clone()
		for language, l := range languages {
			l.apply(p.CodeLanguages, language)
		}
		ships[name] = p
		if err := ships[name].validateLanguages("profiles." + name); err != nil {
			return nil, err
		}
	}
	b := &profileBuilder{configs: configs, builtin: ships, done: maps.Clone(ships)}
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

// build returns the profile called name; path has the profiles that are being built on top
// of it.
func (b *profileBuilder) build(name string, path []string) (Profile, error) {
	field := "profiles." + name
	if !validName(name, profileNameLen, profileNameSet) {
		return Profile{}, &spec.FieldError{Field: "profiles", Value: spec.Quote(name),
			Rule: `a name must be 1 to 64 of a-z, A-Z, 0-9, "_" and "-"`}
	}
	if slices.Contains(path, name) {
		return Profile{}, &spec.FieldError{Field: field + ".extends", Value: strings.Join(append(path, name), " → "),
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

// base returns the profile that name extends.
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
	return Profile{}, &spec.FieldError{Field: fmt.Sprintf("profiles.%s.extends", name), Value: spec.Quote(extends),
		Rule: "must be a profile of this file, or one of " + strings.Join(slices.Sorted(maps.Keys(b.builtin)), ", ")}
}
