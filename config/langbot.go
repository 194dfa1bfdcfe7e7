package config

import (
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// Langbot is the second door, for LangBot's Box Runtime protocol.
type Langbot struct {
	Listen         string    `yaml:"listen"`       // TCP address; empty: no door
	TokenFile      string    `yaml:"token_file"`   // of the shared secret; see also Token
	InstanceID     string    `yaml:"instance_id"`  // the only one that is let in; empty: the first one that comes
	Tenant         string    `yaml:"tenant"`       // that its sessions belong to
	Profile        string    `yaml:"profile"`      // of its sessions
	BackendName    string    `yaml:"backend_name"` // that it calls itself
	NetworkOn      string    `yaml:"network_on"`   // LangbotOffline or LangbotRefuse
	TimeoutEnds    string    `yaml:"timeout_ends"` // LangbotSession or LangbotCommand
	SkillsDir      string    `yaml:"skills_dir"`   // directory of the host; empty: volumes
	SkillsSize     spec.Size `yaml:"skills_size"`  // of the skills of one workspace
	SkillsInodes   int64     `yaml:"skills_inodes"`
	MaxConnections int       `yaml:"max_connections"`

	// Token is the shared secret itself and Init what LangBot would send first, as JSON.
	// Both come from the environment only, under the names that LangBot uses:
	// LANGBOT_BOX_CONTROL_TOKEN and LANGBOT_BOX_CONFIG. TokenFile goes before Token.
	Token string `yaml:"-"`
	Init  string `yaml:"-"`
}

// Values of [Langbot].NetworkOn and TimeoutEnds.
const (
	LangbotRefuse  = "refuse"  // a request for a network is an error
	LangbotOffline = "offline" // it gets a box without one, and a warning
	LangbotSession = "session" // as the protocol has it
	LangbotCommand = "command" // and nothing else
)

func defaultLangbot() Langbot {
	return Langbot{
		Tenant: "langbot", Profile: policy.LangbotProfile, BackendName: "boxd",
		NetworkOn: LangbotOffline, TimeoutEnds: LangbotSession,
		SkillsSize: 256 << 20, MaxConnections: 1024,
	}
}
