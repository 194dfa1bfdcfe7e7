package cli

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/boxd/boxd/config"
	"github.com/boxd/boxd/engine"
	"github.com/spf13/cobra"
)

// ServeOptions is what boxd serve was asked for.
type ServeOptions struct {
	Config config.Config
	// ConfigFile is where it was read from; empty: it was not.
	ConfigFile string
	// Reload reads file, environment and flags again.
	Reload func() (config.Config, error)
	// InitPath is boxd-init, or why there is none: only who starts the launcher
	// needs it.
	InitPath  string
	InitError error
	// StopSessions ends all sessions when the daemon is stopped.
	StopSessions bool
}

type serveFlags struct {
	file                   string
	stateDir, runtimeDir   string
	socket, group, listen  string
	langbotListen          string
	tokens, user, initPath string
	logFormat, logLevel    string
	allowMountRoots        []string
	listenUsers            []string
	stopSessions, check    bool
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
it, unless they are set as well. SIGTERM and SIGINT stop the daemon; sessions and their
processes keep running, and the next daemon takes them over. SIGHUP reloads tokens and
the log level.

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
	return cmd
}

func (f *serveFlags) register(cmd *cobra.Command) {
	fs := cmd.Flags()
	fs.SortFlags = false
	fs.StringVar(&f.file, "config", "", "configuration `FILE` (default: $BOXD_CONFIG, or none)")
	fs.StringVar(&f.stateDir, "state-dir", "", "`DIR` for database, audit log and workspaces (default /var/lib/boxd)")
	fs.StringVar(&f.runtimeDir, "runtime-dir", "", "`DIR` of the launcher (default "+defaultStateDir+")")
	fs.StringVar(&f.socket, "socket", "", "`PATH` of the socket for local clients (default "+defaultSocket+")")
	fs.StringVar(&f.group, "socket-group", "", "`GROUP` that may use the socket (default: the group of --user)")
	fs.StringVar(&f.listen, "listen", "", "also listen on TCP `ADDR`; without tokens or client certificates it must be a loopback address")
	fs.StringVar(&f.langbotListen, "langbot-listen", "", "TCP `ADDR` for LangBot, such as 127.0.0.1:5410; without a shared secret it must be a loopback address")
	fs.StringArrayVar(&f.listenUsers, "listen-user", nil, "let user `NAME` of this host use TCP listeners without a token (repeatable; docs/config.md lists who else may)")
	fs.StringVar(&f.tokens, "tokens-file", "", "`FILE` with the tokens of clients")
	fs.StringArrayVar(&f.allowMountRoots, "allow-mount-root", nil, "let sessions mount `DIR` of the host and everything below it (repeatable; default: none)")
	fs.StringVar(&f.user, "user", "", "serve as user `NAME` (default boxd, or an unused ID if there is no such user)")
	fs.StringVar(&f.initPath, "init", "", "`PATH` of boxd-init (default: $BOXD_INIT, or where boxd is installed)")
	fs.BoolVar(&f.stopSessions, "stop-sessions", false, "end all sessions when the daemon is stopped")
	fs.BoolVar(&f.check, "check", false, "only check whether the daemon could start: examine the configuration and the host, and build a box")
	fs.StringVar(&f.logFormat, "log-format", "", "`FORMAT` of the log: text or json (default text)")
	fs.StringVar(&f.logLevel, "log-level", "", "`LEVEL` of the log: debug, info, warn or error (default info)")
	for _, flag := range []string{"config", "socket", "tokens-file", "init"} {
		must(cmd.MarkFlagFilename(flag))
	}
	for _, flag := range []string{"state-dir", "runtime-dir", "allow-mount-root"} {
		must(cmd.MarkFlagDirname(flag))
	}
	must(cmd.RegisterFlagCompletionFunc("log-format", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("log-level", cobra.FixedCompletions([]string{"debug", "info", "warn", "error"}, cobra.ShellCompDirectiveNoFileComp)))
	for _, flag := range []string{"listen", "langbot-listen", "listen-user", "socket-group", "user"} {
		must(cmd.RegisterFlagCompletionFunc(flag, cobra.NoFileCompletions))
	}
}

func (a *App) serve(cmd *cobra.Command, f *serveFlags) error {
	load := func() (config.Config, error) { return a.loadConfig(cmd, f) }
	c, err := load()
	file := a.env(f.file, "BOXD_CONFIG")
	if err != nil && f.check {
		return a.checkServe(cmd, ServeOptions{ConfigFile: file}, err)
	}
	if err != nil {
		return a.nameOrigin(cmd, err)
	}
	o := ServeOptions{Config: c, ConfigFile: file, Reload: load, StopSessions: f.stopSessions}
	o.InitPath, o.InitError = a.initPath(c.InitPath)
	if f.check {
		return a.checkServe(cmd, o, nil)
	}
	return a.nameOrigin(cmd, a.Serve(o))
}

// serveFlagOf are the flags of the keys that have one of another name.
var serveFlagOf = map[string]string{
	"socket.path": "socket", "socket.group": "socket-group", "langbot.listen": "langbot-listen", "init_path": "init", "log.format": "log-format", "log.level": "log-level",
	"state_dir": "state-dir", "runtime_dir": "runtime-dir", "tokens_file": "tokens-file", "allowed_mount_roots": "allow-mount-root", "listen_users": "listen-user",
}

// origin is the flag or the variable that a setting comes from, "" if from neither.
func (a *App) origin(cmd *cobra.Command, field string) string {
	key, _, _ := strings.Cut(field, "[")
	flag := cmd.Flags().Lookup(cmp.Or(serveFlagOf[key], key))
	variable := config.Variable(key)
	switch {
	case flag != nil && flag.Changed:
		return "--" + flag.Name
	case variable != "" && a.env("", variable) != "":
		return "environment: " + variable
	}
	return ""
}

// nameOrigin names the flag or the variable that a refused setting comes from. One of
// the configuration file keeps the name that it has there.
func (a *App) nameOrigin(cmd *cobra.Command, err error) error {
	bad, ok := errors.AsType[*engine.FieldError](err)
	if !ok || err.Error() != bad.Error() { // there is more to say
		return err
	}
	from := a.origin(cmd, bad.Field)
	if from == "" {
		return err
	}
	return &engine.FieldError{Field: from, Value: bad.Value, Rule: bad.Rule}
}

// loadConfig puts the flags on top of environment and file, and checks all of it.
func (a *App) loadConfig(cmd *cobra.Command, f *serveFlags) (config.Config, error) {
	if err := f.refuseEmpty(cmd); err != nil {
		return config.Config{}, err
	}
	c, err := config.Load(a.env(f.file, "BOXD_CONFIG"), a.LookupEnv)
	if err != nil {
		return c, err
	}
	if err := f.apply(cmd, &c); err != nil {
		return c, err
	}
	return c, c.Validate()
}

// refuseEmpty says no to an empty value that was given, but for --listen and
// --langbot-listen, which it turns off.
func (f *serveFlags) refuseEmpty(cmd *cobra.Command) error {
	for _, name := range []string{"config", "state-dir", "runtime-dir", "socket", "socket-group", "tokens-file", "user", "init", "log-format", "log-level"} {
		if flag := cmd.Flags().Lookup(name); flag.Changed && flag.Value.String() == "" {
			return &engine.FieldError{Field: "--" + name, Value: `""`, Rule: "must not be empty; leave the flag out for the default"}
		}
	}
	return nil
}

func (f *serveFlags) apply(cmd *cobra.Command, c *config.Config) error {
	paths := []struct {
		flag, value string
		dst         *string
	}{
		{"state-dir", f.stateDir, &c.StateDir},
		{"runtime-dir", f.runtimeDir, &c.RuntimeDir},
		{"socket", f.socket, &c.Socket.Path},
		{"tokens-file", f.tokens, &c.TokensFile},
		{"init", f.initPath, &c.InitPath},
	}
	for _, p := range paths {
		if p.value == "" {
			continue
		}
		abs, err := filepath.Abs(p.value)
		if err != nil {
			return fmt.Errorf("--%s: %w", p.flag, err)
		}
		*p.dst = abs
	}
	texts := []struct {
		flag, value string
		dst         *string
	}{
		{"listen", f.listen, &c.Listen}, {"langbot-listen", f.langbotListen, &c.Langbot.Listen}, {"socket-group", f.group, &c.Socket.Group}, {"user", f.user, &c.User},
		{"log-format", f.logFormat, &c.Log.Format}, {"log-level", f.logLevel, &c.Log.Level},
	}
	for _, t := range texts {
		if cmd.Flags().Changed(t.flag) {
			*t.dst = t.value
		}
	}
	c.ListenUsers = append(c.ListenUsers, f.listenUsers...)
	for _, root := range f.allowMountRoots {
		abs, err := filepath.Abs(root)
		if err != nil {
			return fmt.Errorf("--allow-mount-root: %w", err)
		}
		c.Policy.AllowedMountRoots = append(c.Policy.AllowedMountRoots, abs)
	}
	return nil
}
