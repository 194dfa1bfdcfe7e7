package policy

import "github.com/boxd/boxd/engine/spec"

// Config is the policy part of the daemon's configuration. docs/config.md documents its
// keys.
type Config struct {
	AllowedMountRoots []string `yaml:"allowed_mount_roots"`
	// SensitiveMountRoots are directories of the host: a session that mounts one of them, or
	// anything in it or around it, becomes sensitive.
	SensitiveMountRoots []string                 `yaml:"sensitive_mount_roots"`
	Tenants             map[string]Tenant        `yaml:"tenants"`
	TenantDefaults      Quotas                   `yaml:"tenant_defaults"`
	TenantRates         Rates                    `yaml:"tenant_rates"`
	Limits              Quotas                   `yaml:"limits"`
	Profiles            map[string]ProfileConfig `yaml:"profiles"`
	DefaultProfile      string                   `yaml:"default_profile"` // empty: "default"
	// AllowedImages are patterns of the images that tenants may use; nil: every image.
	// ImageDigests demands references with a digest of all tenants.
	AllowedImages []string `yaml:"allowed_images" sep:","`
	ImageDigests  bool     `yaml:"image_digests"`
	// Engines build the boxes of sessions, in the order in which they are tried; empty: native.
	Engines       []string `yaml:"engines" sep:","`
	AllowDegraded bool     `yaml:"allow_degraded"` // accept a host that cannot enforce every limit

	// IdleTTL is that of profiles that set none; 0 is DefaultIdleTTL.
	IdleTTL spec.Duration `yaml:"-"`

	// Languages are those of every built-in profile.
	Languages map[string]LanguageConfig `yaml:"-"`
	// NetworkAvailable says that boxes can have a network. While it is false,
	// every request for one is refused.
	NetworkAvailable bool `yaml:"-"`
	// Publish are the ports of the host that sessions can publish.
	Publish PortPool `yaml:"-"`
	// OwnDirs are directories and files of the daemon, which no mount may reach.
	OwnDirs []string `yaml:"-"`
}

// Tenant is the configuration of one tenant.
type Tenant struct {
	Quotas Quotas `yaml:"quotas"`
	// AllowedMountRoots replace the global ones: an empty list allows no mount, nil means
	// the global ones.
	AllowedMountRoots *[]string `yaml:"allowed_mount_roots"`
	// AllowedImages replace the global ones: an empty list allows no image, nil means the
	// global ones. ImageDigests demands references with a digest of this tenant.
	AllowedImages *[]string `yaml:"allowed_images"`
	ImageDigests  bool      `yaml:"image_digests"`
	// NetworkRules narrow those of every profile.
	NetworkRules TenantNetwork `yaml:"network_rules"`
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
	Ports          int64     `yaml:"ports" json:"ports"`                     // of the host, published
}
