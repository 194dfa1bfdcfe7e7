package config

import (
	"strconv"
	"strings"
	"time"

	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/policy"
)

// MCPServer is a server that speaks MCP on stdin and stdout. It runs in boxes, and the daemon serves it at
// the path /mcp/NAME of the API's listeners. Zero values are the defaults of package mcp/gateway.
type MCPServer struct {
	Command        []string          `yaml:"command"` // program and arguments
	Env            map[string]string `yaml:"env"`
	Cwd            string            `yaml:"cwd"`  // in the box; empty: the workspace
	Mode           string            `yaml:"mode"` // shared, session or request
	Profile        string            `yaml:"profile"`
	Mounts         []MCPMount        `yaml:"mounts"`
	Volumes        []MCPVolume       `yaml:"volumes"`
	Install        string            `yaml:"install"` // a line for sh, run once in a box with the server's volume
	InstallProfile string            `yaml:"install_profile"`
	InstallSize    spec.Size         `yaml:"install_size"`
	StartTimeout   spec.Duration     `yaml:"start_timeout"`
	Idle           spec.Duration     `yaml:"idle"`
	MaxSessions    int               `yaml:"max_sessions"`
	Tools          MCPTools          `yaml:"tools"`
	Tenants        []string          `yaml:"tenants"` // who may use it; empty: all
}

// MCPTools says which tools of a server clients may see and call.
type MCPTools struct {
	Allow   []string `yaml:"allow"`
	Pin     string   `yaml:"pin"`     // digest of all tools; empty: any
	Changed string   `yaml:"changed"` // refuse or report
}

// MCPMount is a directory or file of the host in the boxes of a server.
type MCPMount struct {
	Source   string `yaml:"source"`
	Target   string `yaml:"target"`
	ReadOnly bool   `yaml:"read_only"`
}

// MCPVolume is a volume of the tenant in the boxes of a server.
type MCPVolume struct {
	Name     string    `yaml:"name"`
	Target   string    `yaml:"target"`
	Size     spec.Size `yaml:"size"`
	ReadOnly bool      `yaml:"read_only"`
}

// maxServerName bounds names of servers: they are parts of the IDs of sessions and volumes.
const maxServerName = 32

func (s *MCPServer) validate(key, name string) error {
	if name == "" || len(name) > maxServerName || strings.Trim(name, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || strings.Trim(name, "-") != name {
		return refuse("mcp_servers", spec.Quote(name), `the name of a server must be 1 to 32 of a-z, 0-9 and "-"`)
	}
	if strings.HasSuffix(name, "-install") {
		return refuse("mcp_servers", spec.Quote(name), `the name of a server must not end with "-install": the box of an install step has such a name`)
	}
	oneOf := func(field, value string, words ...string) error {
		for _, w := range append(words, "") {
			if value == w {
				return nil
			}
		}
		return refuse(key+"."+field, spec.Quote(value), "must be "+strings.Join(words[:len(words)-1], ", ")+" or "+words[len(words)-1])
	}
	if len(s.Command) == 0 || s.Command[0] == "" {
		return refuse(key+".command", "is missing", "program and arguments of the server, as a list")
	}
	if err := oneOf("mode", s.Mode, "shared", "session", "request"); err != nil {
		return err
	}
	if err := oneOf("tools.changed", s.Tools.Changed, "refuse", "report"); err != nil {
		return err
	}
	if hex, ok := strings.CutPrefix(s.Tools.Pin, "sha256:"); s.Tools.Pin != "" && (!ok || len(hex) != 64 || strings.Trim(hex, "0123456789abcdef") != "") {
		return refuse(key+".tools.pin", spec.Quote(s.Tools.Pin), "must be sha256: and 64 hexadecimal digits")
	}
	for field, d := range map[string]spec.Duration{"start_timeout": s.StartTimeout, "idle": s.Idle} {
		if d != 0 && (d.D() < time.Second || d.D() > 24*time.Hour) {
			return refuse(key+"."+field, d.String(), "must be 1s to 24h")
		}
	}
	if s.MaxSessions < 0 || s.MaxSessions > 4096 {
		return refuse(key+".max_sessions", strconv.Itoa(s.MaxSessions), "must be 1 to 4096")
	}
	if s.InstallSize != 0 && s.InstallSize < 1<<20 {
		return refuse(key+".install_size", s.InstallSize.String(), "must be at least 1M")
	}
	for _, tenant := range s.Tenants {
		if err := policy.ValidateTenant(tenant); err != nil {
			return refuse(key+".tenants", spec.Quote(tenant), "must be the name of a tenant")
		}
	}
	return nil
}
