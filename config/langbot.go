package config

import (
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// Langbot configures the listener for LangBot's Box Runtime protocol.
type Langbot struct {
	Listen         string    `yaml:"listen"`       // TCP address; empty: no listener
	TokenFile      string    `yaml:"token_file"`   // has the shared secret; see also Token
	InstanceID     string    `yaml:"instance_id"`  // the only instance admitted; empty: the first that connects
	Tenant         string    `yaml:"tenant"`       // of its sessions
	Profile        string    `yaml:"profile"`      // of its sessions
	BackendName    string    `yaml:"backend_name"` // that it reports to LangBot
	NetworkOn      string    `yaml:"network_on"`   // LangbotOffline or LangbotRefuse
	TimeoutEnds    string    `yaml:"timeout_ends"` // LangbotSession or LangbotCommand
	SkillsDir      string    `yaml:"skills_dir"`   // on the host; empty: volumes
	SkillsSize     spec.Size `yaml:"skills_size"`  // of the skills of one workspace
	SkillsInodes   int64     `yaml:"skills_inodes"`
	MaxConnections int       `yaml:"max_connections"`

	// Token is the shared secret itself, and Init, as JSON, the first message that LangBot
	// would otherwise send. Both come only from the environment, from the variables that
	// LangBot uses: LANGBOT_BOX_CONTROL_TOKEN and LANGBOT_BOX_CONFIG. TokenFile takes
	// precedence over Token.
	Token string `yaml:"-"`
	Init  string `yaml:"-"`
}

// Values of [Langbot].NetworkOn and TimeoutEnds.
const (
	LangbotRefuse  = "refuse"  // a request for a network is an error
	LangbotOffline = "offline" // a request for a network gets a box without one, and a warning
	LangbotSession = "session" // a timeout ends the session, as in the protocol
	LangbotCommand = "command" // a timeout ends only the command
)

func defaultLangbot() Langbot {
	return Langbot{
		Tenant: "langbot", Profile: policy.LangbotProfile, BackendName: "boxd",
		NetworkOn: LangbotOffline, TimeoutEnds: LangbotSession,
		SkillsSize: 256 << 20, MaxConnections: 1024,
	}
}
