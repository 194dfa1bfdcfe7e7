package config

import (
	"time"

	"github.com/boxd/boxd/egress/rules"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// Config has every key of the configuration file. docs/config.md describes them.
//
// The tag yaml is the name of a key. The tag env is the name of its environment variable,
// without "BOXD_", if that is not the path of the key in upper case. The tag sep separates the
// words of a list in the environment, if that is not ":".
type Config struct {
	StateDir   string `yaml:"state_dir"`
	RuntimeDir string `yaml:"runtime_dir"` // empty: derived from StateDir
	Socket     Socket `yaml:"socket"`
	Listen     string `yaml:"listen"` // TCP address; empty: none
	// ListenUsers are users of this host, by name or number, who may use TCP listeners that
	// require no credentials.
	ListenUsers []string `yaml:"listen_users"`
	TLS         TLS      `yaml:"tls"`
	TokensFile  string   `yaml:"tokens_file"`
	User        string   `yaml:"user"` // empty: boxd, or an ID of its own if there is no such user
	InitPath    string   `yaml:"init_path" env:"INIT"`
	Log         Log      `yaml:"log"`
	Audit       Audit    `yaml:"audit"`
	Sessions    Sessions `yaml:"sessions"`
	Exec        Exec     `yaml:"exec"`
	History     History  `yaml:"history"`
	Relay       Relay    `yaml:"relay"`
	HTTP        HTTP     `yaml:"http"`
	Images      Images   `yaml:"images"`
	Langbot     Langbot  `yaml:"langbot"`
	Preview     Preview  `yaml:"preview"`
	MCP         MCP      `yaml:"mcp"`
	// MCPServers are servers of other people that run in boxes, by name.
	MCPServers map[string]MCPServer `yaml:"mcp_servers"`
	// Network says whether boxes can have a network: NetworkOff or NetworkProxy.
	Network string  `yaml:"network"`
	Publish Publish `yaml:"publish"`
	// Programs are for Policy.Engines. Root passes them to the launcher, which executes them as root.
	Programs Programs `yaml:",inline"`
	// Webhooks by name: who is told when a managed process or a session has ended.
	Webhooks map[string]Webhook `yaml:"webhooks"`
	// Pool is how many boxes the launcher may build before they are asked for; 0 is none.
	Pool int `yaml:"pool"`

	Policy policy.Config `yaml:",inline"`
}

// Values of Config.Network.
const (
	NetworkOff   = "off"   // boxes have loopback, whatever profiles and requests say
	NetworkProxy = "proxy" // a proxy of the daemon connects the boxes that ask for a network and may have one
)

// Socket is the Unix socket for local clients.
type Socket struct {
	Path  string `yaml:"path" env:"SOCKET"` // empty: derived from StateDir
	Group string `yaml:"group"`
	Mode  string `yaml:"mode"` // octal; see [Socket.FileMode]
}

// TLS configures the TCP listener. With ClientCA, clients must present a certificate.
type TLS struct {
	Cert     string `yaml:"cert"`
	Key      string `yaml:"key"`
	ClientCA string `yaml:"client_ca"`
}

// Publish configures the ports of the host that sessions can publish.
type Publish struct {
	Ports   string `yaml:"ports"`   // FIRST-LAST; empty: none
	Address string `yaml:"address"` // on which they are open
}

// Log configures the log of the daemon.
type Log struct {
	Format string `yaml:"format"` // "text" or "json"
	Level  string `yaml:"level"`  // "debug", "info", "warn" or "error"
}

// Audit configures the audit log.
type Audit struct {
	File    string    `yaml:"file"` // empty: audit.log in StateDir
	MaxSize spec.Size `yaml:"max_size"`
	Keep    int       `yaml:"keep"`
	Sync    bool      `yaml:"sync"`
}

// Sessions are defaults for the sessions of every profile.
type Sessions struct {
	IdleTTL   spec.Duration `yaml:"idle_ttl"`   // of profiles that set none
	KeepEnded int           `yaml:"keep_ended"` // ended managed processes per session
	StopGrace spec.Duration `yaml:"stop_grace"` // between SIGTERM and SIGKILL
	MinFree   int           `yaml:"min_free"`   // percent of the disk that workspaces without a hard limit must leave free; 0: none
}

// Exec bounds the output of one command.
type Exec struct {
	OutputLimit  spec.Size `yaml:"output_limit"`  // above it the command is killed; -1: no limit
	CaptureLimit spec.Size `yaml:"capture_limit"` // of each stream in a JSON answer
}

// History bounds the records of commands and processes that have ended.
type History struct {
	SessionEntries int           `yaml:"session_entries"` // of one session
	SessionSize    spec.Size     `yaml:"session_size"`    // of the entries of one session
	TenantSize     spec.Size     `yaml:"tenant_size"`     // of the entries of one tenant
	Keep           spec.Duration `yaml:"keep"`            // age at which an entry is forgotten
	KeepUsage      spec.Duration `yaml:"keep_usage"`      // age at which counters of usage are forgotten
}

// Relay configures the relays of the streams of managed processes.
type Relay struct {
	History    spec.Size `yaml:"history"`     // per stream
	MaxClients int       `yaml:"max_clients"` // of all processes together
}

// HTTP bounds requests and connections.
type HTTP struct {
	MaxBody        spec.Size     `yaml:"max_body"` // of JSON
	MaxFile        spec.Size     `yaml:"max_file"` // of a file, read or written
	MaxTree        spec.Size     `yaml:"max_tree"` // of a directory that is packed, unpacked or copied
	MaxConnections int           `yaml:"max_connections"`
	HeaderTimeout  spec.Duration `yaml:"header_timeout"`
	IdleTimeout    spec.Duration `yaml:"idle_timeout"`
	MetricLabels   []string      `yaml:"metric_labels"` // of sessions, that metrics tell apart
	Scope          string        `yaml:"scope"`         // of sessions that are asked for without ID and scope
}

// Preview configures host names for ports of sessions.
type Preview struct {
	// URL is that of the domain as browsers see it, such as https://preview.example.com: ports are at
	// https://PORT-SESSION.preview.example.com. Empty: there are none.
	URL         string        `yaml:"url"`
	Listen      string        `yaml:"listen"`
	TLS         PreviewTLS    `yaml:"tls"` // empty: plain HTTP, for a proxy in front that ends TLS
	MaxTTL      spec.Duration `yaml:"max_ttl"`
	DropHeaders []string      `yaml:"drop_headers" sep:","` // of requests, that boxes do not get
}

// MCP configures the tools for language models, at the path /mcp of the API's listeners.
type MCP struct {
	Enabled     bool   `yaml:"enabled"`
	Profile     string `yaml:"profile"` // of new sessions; empty: the tenant's default
	Scope       string `yaml:"scope"`   // of sessions, if token and profile have none; empty: one for each caller and program
	SessionTool bool   `yaml:"session_tool"`
}

// PreviewTLS is the certificate of the listener of previews.
type PreviewTLS struct {
	Cert string `yaml:"cert"`
	Key  string `yaml:"key"`
}

// Images configures the store of images.
type Images struct {
	MaxSize    spec.Size `yaml:"max_size"`    // of all images; 0: no bound
	TenantSize spec.Size `yaml:"tenant_size"` // of the images of one tenant; 0: no bound
	Platform   string    `yaml:"platform"`    // OS/architecture[/variant]; empty: this host's
	Prefetch   []string  `yaml:"prefetch" sep:","`
	// Registries by host, with a port unless it is 443.
	Registries map[string]Registry `yaml:"registries"`
}

// Webhook is a server that is told when a managed process or a session has ended. Of numbers, 0 is the default
// of package webhook.
type Webhook struct {
	URL       string        `yaml:"url"`
	Secret    rules.Source  `yaml:"secret"`  // whose content signs
	Events    []string      `yaml:"events"`  // of WebhookEvents; empty: all
	Tenants   []string      `yaml:"tenants"` // empty: all
	Timeout   spec.Duration `yaml:"timeout"` // of one attempt
	Rate      int           `yaml:"rate"`    // attempts per second
	QueueSize spec.Size     `yaml:"queue_size"`
	MaxAge    spec.Duration `yaml:"max_age"` // of a message that the server does not take
}

// Registry says how to reach a registry of images.
type Registry struct {
	Mirrors   []string `yaml:"mirrors"`  // asked first, in this order
	Insecure  bool     `yaml:"insecure"` // plain HTTP, or a certificate that no authority has signed
	LoginFile string   `yaml:"login_file"`
}

// Directories and files of a daemon without a configuration.
const (
	DefaultStateDir   = "/var/lib/boxd"
	DefaultRuntimeDir = "/run/boxd"
	socketName        = "boxd.sock"
	auditName         = "audit.log"
)

// Default returns the configuration without a file.
func Default() Config {
	seconds := func(n int) spec.Duration { return spec.Duration(time.Duration(n) * time.Second) }
	return Config{
		StateDir: DefaultStateDir, Network: NetworkProxy, Publish: Publish{Address: "127.0.0.1"},
		Socket:   Socket{Mode: "0660"},
		Log:      Log{Format: "text", Level: "info"},
		Audit:    Audit{MaxSize: 64 << 20, Keep: 10},
		Sessions: Sessions{IdleTTL: seconds(300), KeepEnded: 16, StopGrace: seconds(5), MinFree: 5},
		Exec:     Exec{OutputLimit: 16 << 20, CaptureLimit: 1 << 20},
		History: History{SessionEntries: 1000, SessionSize: 8 << 20, TenantSize: 64 << 20,
			Keep: seconds(7 * 24 * 3600), KeepUsage: seconds(400 * 24 * 3600)},
		Relay: Relay{History: engine.DefaultHistory, MaxClients: 4096},
		HTTP: HTTP{MaxBody: 1 << 20, MaxFile: 1 << 30, MaxTree: 64 << 30, MaxConnections: 4096,
			HeaderTimeout: seconds(5), IdleTimeout: seconds(120)},
		Images:  Images{MaxSize: 32 << 30, TenantSize: 16 << 30},
		Preview: Preview{MaxTTL: seconds(7 * 24 * 3600)},
		Langbot: defaultLangbot(),
		MCP:     MCP{Enabled: true},
		Policy: policy.Config{
			TenantDefaults: policy.DefaultQuotas,
			Limits:         policy.DefaultLimits,
			DefaultProfile: policy.DefaultProfile,
			Languages:      languages(),
		},
	}
}
