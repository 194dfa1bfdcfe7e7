package policy

import "github.com/boxd/boxd/engine/spec"

// Config is the policy part of the daemon's configuration. docs/config.md documents its
// keys.
type Config struct {
	AllowedMountRoots []string                 `yaml:"allowed_mount_roots"`
	Tenants           map[string]Tenant        `yaml:"tenants"`
	TenantDefaults    Quotas                   `yaml:"tenant_defaults"`
	TenantRates       Rates                    `yaml:"tenant_rates"`
	Limits            Quotas                   `yaml:"limits"`
	Profiles          map[string]ProfileConfig `yaml:"profiles"`
	DefaultProfile    string                   `yaml:"default_profile"` // empty: "default"
	AllowDegraded     bool                     `yaml:"allow_degraded"`  // accept a host that cannot enforce every limit

	// IdleTTL is that of profiles that set none; 0 is DefaultIdleTTL.
	IdleTTL spec.Duration `yaml:"-"`

	// Languages are those of every built-in profile.
	Languages map[string]LanguageConfig `yaml:"-"`
	// NetworkAvailable says that the engine can give a box a network. While it is false,
	// every request for one is refused.
	NetworkAvailable bool `yaml:"-"`
	// OwnDirs are directories and files of the daemon, which no mount may reach.
	OwnDirs []string `yaml:"-"`
}

// Tenant is the configuration of one tenant.
type Tenant struct {
	Quotas Quotas `yaml:"quotas"`
	// AllowedMountRoots replace the global ones: an empty list allows no mount, nil means
	// the global ones.
	AllowedMountRoots *[]string `yaml:"allowed_mount_roots"`
	// Profiles that the tenant may use; empty: all of them.
	Profiles []string `yaml:"profiles"`
	// Rates bound what the tenant may begin per second.
	Rates Rates `yaml:"rates"`
	// Daily bounds what the tenant may use on one day.
	Daily Budget `yaml:"daily"`
	// StrictScopes refuses requests whose scope lacks a variable; see [ScopeID].
	StrictScopes bool `yaml:"strict_scopes"`
}

// Budget bounds what a tenant may use from midnight to midnight, UTC. 0 is no bound.
type Budget struct {
	CPU     spec.Duration `yaml:"cpu"`     // processor time
	Execs   int64         `yaml:"execs"`   // commands and managed processes
	Written spec.Size     `yaml:"written"` // bytes to block devices
}

// Quotas bound what is in use at once. 0 is the default, -1 ([spec.Unlimited]) is no limit.
type Quotas struct {
	Sessions       int64     `yaml:"sessions" json:"sessions"`
	Processes      int64     `yaml:"processes" json:"processes"`             // managed ones
	Execs          int64     `yaml:"execs" json:"execs"`                     // commands and file operations
	Memory         spec.Size `yaml:"memory" json:"memory"`                   // sum of the limits of all boxes, bytes
	CPUs           float64   `yaml:"cpus" json:"cpus"`                       // sum of the limits of all boxes
	WorkspaceBytes spec.Size `yaml:"workspace_bytes" json:"workspace_bytes"` // of the workspaces that boxd keeps
	Volumes        int64     `yaml:"volumes" json:"volumes"`                 // named ones
	VolumeBytes    spec.Size `yaml:"volume_bytes" json:"volume_bytes"`       // sum of the sizes of named volumes
	Watches        int64     `yaml:"watches" json:"watches"`                 // of directories in boxes
}
