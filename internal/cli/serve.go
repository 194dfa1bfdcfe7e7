package cli

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/boxd/boxd/config"
	"github.com/boxd/boxd/engine"
	"github.com/spf13/cobra"
)

// ServeOptions are the options of boxd serve.
type ServeOptions struct {
	Config config.Config
	// ConfigFile is the file that Config was read from; empty: none.
	ConfigFile string
	// Reload reads the file, the environment and the flags again.
	Reload func() (config.Config, error)
	// InitPath is the path of boxd-init, and InitError says why there is none. Only a daemon that
	// starts the launcher needs it.
	InitPath  string
	InitError error
	// StopSessions ends all sessions when the daemon stops.
	StopSessions bool
}

type serveFlags struct {
	file                         string
	allowMountRoots, listenUsers []string
	stopSessions, check          bool
}

// serveSetting is a flag of boxd serve that sets one text of the configuration.
type serveSetting struct {
	flag, key, usage string
	of               func(*config.Config) *string
	path             bool     // it is made absolute
	mayBeEmpty       bool     // an empty value turns the listener off
	values           []string // for completion
}

var serveSettings = []serveSetting{
	{flag: "state-dir", key: "state_dir", usage: "`DIR` for database, audit log and workspaces (default /var/lib/boxd)", path: true, of: func(c *config.Config) *string { return &c.StateDir }},
	{flag: "runtime-dir", key: "runtime_dir", usage: "`DIR` of the launcher (default " + defaultStateDir + ")", path: true, of: func(c *config.Config) *string { return &c.RuntimeDir }},
	{flag: "socket", key: "socket.path", usage: "`PATH` of the socket for local clients (default " + defaultSocket + ")", path: true, of: func(c *config.Config) *string { return &c.Socket.Path }},
	{flag: "socket-group", key: "socket.group", usage: "`GROUP` that may use the socket (default: the group of --user)", of: func(c *config.Config) *string { return &c.Socket.Group }},
	{flag: "listen", key: "listen", usage: "also listen on TCP `ADDR`; without tokens or client certificates it must be a loopback address", mayBeEmpty: true, of: func(c *config.Config) *string { return &c.Listen }},
	{flag: "langbot-listen", key: "langbot.listen", usage: "TCP `ADDR` for LangBot, such as 127.0.0.1:5410; without a shared secret it must be a loopback address", mayBeEmpty: true, of: func(c *config.Config) *string { return &c.Langbot.Listen }},
	{flag: "tokens-file", key: "tokens_file", usage: "`FILE` with the tokens of clients", path: true, of: func(c *config.Config) *string { return &c.TokensFile }},
	{flag: "user", key: "user", usage: "serve as user `NAME` (default boxd, or an unused ID if there is no such user)", of: func(c *config.Config) *string { return &c.User }},
	{flag: "init", key: "init_path", usage: "`PATH` of boxd-init (default: $BOXD_INIT, or where boxd is installed)", path: true, of: func(c *config.Config) *string { return &c.InitPath }},
	{flag: "log-format", key: "log.format", usage: "`FORMAT` of the log: text or json (default text)", values: []string{"text", "json"}, of: func(c *config.Config) *string { return &c.Log.Format }},
	{flag: "log-level", key: "log.level", usage: "`LEVEL` of the log: debug, info, warn or error (default info)", values: []string{"debug", "info", "warn", "error"}, of: func(c *config.Config) *string { return &c.Log.Level }},
}

func (a *App) newServe() *cobra.Command {
	var f serveFlags
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Run the daemon: sessions and managed processes over HTTP",
		Long: `Run the daemon, which keeps sessions and managed processes. It serves HTTP on a Unix
socket and optionally on TCP. docs/config.md describes the configuration file.
Environment variables override the file, and flags override both.

Started as root, the daemon creates its directories, starts the launcher that builds
boxes, and then drops root for good: it serves as --user. Started as another user, it
needs a running launcher, for example boxd-launcher.service of systemd.

If --state-dir is not the default, the runtime directory and the socket are placed in
it, unless they are set as well; $BOXD_SOCKET, which clients use, does not count then. SIGTERM and SIGINT stop the daemon; sessions and their
processes keep running, and the next daemon takes them over. SIGHUP reloads tokens and
the log level.

Exit status: 0 if the daemon was stopped, 78 if its configuration is wrong (file,
environment or flags), 125 if it could not start for another reason.

--check reports everything that would prevent the daemon from starting, and exits with 0
if it could start, otherwise 1. A running daemon is neither disturbed nor in the way.`,
		Example: `  boxd serve
  boxd serve --check --config /etc/boxd/new.yaml
  boxd serve --state-dir /srv/boxd --allow-mount-root /srv/jobs
  boxd serve --listen 127.0.0.1:8420 --tokens-file /etc/boxd/tokens
  boxd serve --langbot-listen 127.0.0.1:5410`,
		Args: exactly(),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serve(cmd, &f) },

		DisableFlagsInUseLine: true,
	}
	f.register(cmd)
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return &statusError{statusConfig, flagError(cmd, err)} })
	return cmd
}

func (f *serveFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&f.file, "config", "", "configuration `FILE` (default: $BOXD_CONFIG, or none)")
	for _, t := range serveSettings {
		fs.String(t.flag, "", t.usage)
		if !t.path {
			completeFlag(cmd, t.flag, t.values...)
		}
	}
	fs.StringArrayVar(&f.listenUsers, "listen-user", nil, "let user `NAME` of this host use TCP listeners without a token (repeatable; docs/config.md lists who else may)")
	fs.StringArrayVar(&f.allowMountRoots, "allow-mount-root", nil, "let sessions mount `DIR` of the host and everything below it (repeatable; default: none)")
	fs.BoolVar(&f.stopSessions, "stop-sessions", false, "end all sessions when the daemon is stopped")
	fs.BoolVar(&f.check, "check", false, "only check whether the daemon could start: examine the configuration and the host, and build a box")
	completeFiles(cmd, "config", "socket", "tokens-file", "init")
	completeDirs(cmd, "state-dir", "runtime-dir", "allow-mount-root")
	completeFlag(cmd, "listen-user")
}

func (a *App) serve(cmd *cobra.Command, f *serveFlags) error {
	load := func() (config.Config, error) { return a.loadConfig(cmd, f) }
	c, err := load()
	file := a.env(f.file, "BOXD_CONFIG")
	if err != nil && f.check {
		return a.checkServe(cmd, ServeOptions{ConfigFile: file}, err)
	}
	if err != nil {
		return &statusError{statusConfig, a.nameOrigin(cmd, err)}
	}
	o := ServeOptions{Config: c, ConfigFile: file, Reload: load, StopSessions: f.stopSessions}
	o.InitPath, o.InitError = a.initPath(c.InitPath)
	if f.check {
		return a.checkServe(cmd, o, nil)
	}
	return a.nameOrigin(cmd, a.Serve(o))
}

// origin returns the flag or the variable that a setting comes from, or "".
func (a *App) origin(cmd *cobra.Command, field string) string {
	key, _, _ := strings.Cut(field, "[")
	name := map[string]string{"allowed_mount_roots": "allow-mount-root", "listen_users": "listen-user"}[key]
	for _, t := range serveSettings {
		if t.key == key {
			name = t.flag
		}
	}
	variable := config.Variable(key)
	if _, given := a.serverEnv(cmd)(variable); !given {
		variable = ""
	}
	switch {
	case name != "" && cmd.Flags().Changed(name):
		return "--" + name
	case variable != "" && a.env("", variable) != "":
		return "environment: " + variable
	}
	return ""
}

// nameOrigin names the flag or the variable that a refused setting comes from. A setting of the
// configuration file keeps its key.
func (a *App) nameOrigin(cmd *cobra.Command, err error) error {
	bad, ok := errors.AsType[*engine.FieldError](err)
	if !ok || err.Error() != bad.Error() { // err says more than bad
		return err
	}
	from := a.origin(cmd, bad.Field)
	if from == "" {
		return err
	}
	return &engine.FieldError{Field: from, Value: bad.Value, Rule: bad.Rule}
}

// serverEnv looks up variables of the environment. BOXD_SOCKET also leads clients to a daemon, perhaps to
// another one: it names the socket of this one only if no flag says where this one belongs.
func (a *App) serverEnv(cmd *cobra.Command) func(string) (string, bool) {
	return func(name string) (string, bool) {
		if name == "BOXD_SOCKET" && cmd.Flags().Changed("state-dir") {
			return "", false
		}
		return a.LookupEnv(name)
	}
}

// loadConfig reads the configuration file and the environment, applies the flags, and checks the
// result.
func (a *App) loadConfig(cmd *cobra.Command, f *serveFlags) (config.Config, error) {
	required := []string{"config"}
	for _, t := range serveSettings {
		if !t.mayBeEmpty {
			required = append(required, t.flag)
		}
	}
	if err := refuseEmpty(cmd.Flags(), required...); err != nil {
		return config.Config{}, err
	}
	c, err := config.Load(a.env(f.file, "BOXD_CONFIG"), a.serverEnv(cmd))
	if err != nil {
		return c, err
	}
	for _, t := range serveSettings {
		flag := cmd.Flags().Lookup(t.flag)
		if !flag.Changed {
			continue
		}
		value := flag.Value.String()
		if t.path {
			if value, err = filepath.Abs(value); err != nil {
				return c, fmt.Errorf("--%s: %w", t.flag, err)
			}
		}
		*t.of(&c) = value
	}
	c.ListenUsers = append(c.ListenUsers, f.listenUsers...)
	for _, root := range f.allowMountRoots {
		abs, err := filepath.Abs(root)
		if err != nil {
			return c, fmt.Errorf("--allow-mount-root: %w", err)
		}
		c.Policy.AllowedMountRoots = append(c.Policy.AllowedMountRoots, abs)
	}
	return c, c.Validate()
}
