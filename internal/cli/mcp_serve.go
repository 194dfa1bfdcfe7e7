package cli

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/engine/spec"
	"github.com/boxd/boxd/mcp/gateway"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

type mcpServeFlags struct {
	remoteFlags
	commandFlags
	specFlags
	stdio   bool
	listen  string
	server  gateway.Server
	start   time.Duration
	idle    time.Duration
	allowed []string
}

func (a *App) newMCPServe() *cobra.Command {
	var f mcpServeFlags
	cmd := &cobra.Command{
		Use:   "serve [flags] (NAME | -- CMD [ARG...])",
		Short: "Reach an MCP server of the daemon on stdin and stdout, or run one in a box and serve it",
		Long: `With NAME, a key of mcp_servers in the daemon's configuration: speak MCP on stdin and stdout
for that server, which the daemon runs. This is for desktop programs that start their servers;
others connect to /mcp/NAME of the daemon. How the server runs follows from the configuration.
The end of stdin ends calls in progress and the session.

With CMD: run a server that speaks MCP on stdin and stdout in a box of the daemon, and serve
it here: as streamable HTTP on a port of this host, with a token that is printed, or with
--stdio on stdin and stdout. The box goes with this command. The daemon does not see the calls, so
its audit log has the process only; calls of a server that the daemon's configuration names are in it.

--mode says which clients share a process: shared, all of them; session, each session of the
protocol has a process and a box of its own; request, each request has a process.`,
		Example: `  boxd mcp serve notes
  boxd mcp serve -v /srv/notes:/notes:ro -- mcp-server-filesystem /notes
  boxd mcp serve --stdio --profile offline_readonly -- python3 server.py`,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && cmd.ArgsLenAtDash() < 0 && serverName.MatchString(args[0]) {
				if err := f.checkNamed(cmd); err != nil {
					return err
				}
				return a.remote(&f.remoteFlags, func(ctx context.Context, c *client.Client) error {
					err := patiently(ctx, answerPatience, func(ctx context.Context) error { return gateway.CheckServer(ctx, c, args[0]) })
					if err != nil {
						return err
					}
					return gateway.Bridge(ctx, gateway.BridgeOptions{Server: args[0], Client: c, In: a.Stdin, Out: a.Stdout, Logger: a.logger()})
				})
			}
			_, command, err := afterDash(cmd, args)
			if err == nil && len(command) == 0 {
				err = usageError(cmd, "the NAME of a server of the daemon, or -- and the command of another one, is missing")
			}
			if err != nil {
				return err
			}
			s := &f.server
			if s.Argv, err = f.argv(command); err != nil {
				return err
			}
			if s.Env, err = a.environ(&f.commandFlags); err != nil {
				return err
			}
			wishes, err := f.spec()
			if err != nil {
				return err
			}
			if wishes != nil {
				s.Box = *wishes
			}
			s.Box.User, s.Cwd, s.StartTimeout, s.Idle, s.Tools.Allow = f.user, f.workdir, f.start, f.idle, f.allowed
			switch s.Mode {
			case gateway.ModeShared, gateway.ModeSession, gateway.ModeRequest:
			default:
				return &engine.FieldError{Field: "--mode", Value: spec.Quote(s.Mode), Rule: "must be shared, session or request"}
			}
			s.Name = strings.ToLower(rand.Text()[:10])
			return a.remote(&f.remoteFlags, func(ctx context.Context, c *client.Client) error { return a.mcpServe(ctx, c, &f) })
		},
	}
	fs := cmd.Flags()
	fs.BoolVar(&f.stdio, "stdio", false, "serve one client on stdin and stdout")
	fs.StringVar(&f.listen, "listen", "127.0.0.1:0", "loopback `ADDRESS` of HTTP; port 0: a free one")
	fs.StringVar(&f.server.Mode, "mode", gateway.ModeShared, "`MODE` shared, session or request")
	fs.StringVar(&f.server.Install, "install", "", "run this `LINE` for sh in another box first, with a volume at "+gateway.InstallDir+" that the server has read-only")
	fs.StringVar(&f.server.InstallProfile, "install-profile", "", "`NAME` of the profile of that box (default: that of the server)")
	fs.Var(durationValue(&f.start, gateway.DefaultStartTimeout.String()), "start-timeout", "how long the server may take to answer: `DURATION`")
	fs.Var(durationValue(&f.idle, gateway.DefaultIdle.String()), "idle", "end a process after `DURATION` without a request; the next one starts it again")
	fs.StringArrayVar(&f.allowed, "allow-tool", nil, "`NAME` of a tool that clients may use (repeatable; default: all)")
	fs.StringVar(&f.server.Tools.Pin, "pin", "", "refuse tools with another `DIGEST`, which the log shows at each start")
	f.commandFlags.register(cmd, "the workspace", "the session's")
	f.specFlags.register(a, cmd, &f.remoteFlags)
	f.registerDaemon(cmd)
	completeFlag(cmd, "listen")
	completeFlag(cmd, "mode", gateway.ModeShared, gateway.ModeSession, gateway.ModeRequest)
	completeFlag(cmd, "install")
	completeFlag(cmd, "install-profile")
	completeFlag(cmd, "start-timeout", "30s", "2m")
	completeFlag(cmd, "idle", "5m", "1h")
	completeFlag(cmd, "allow-tool")
	completeFlag(cmd, "pin")
	return cmd
}

// serverName are the names that servers of the daemon can have.
var serverName = regexp.MustCompile(`^[a-z0-9-]{1,32}$`)

// checkNamed refuses flags that say how a server runs, together with the name of one that the daemon runs.
func (f *mcpServeFlags) checkNamed(cmd *cobra.Command) (err error) {
	daemon := &cobra.Command{}
	(&remoteFlags{}).registerDaemon(daemon)
	cmd.Flags().Visit(func(flag *pflag.Flag) {
		if err == nil && flag.Name != "stdio" && daemon.Flags().Lookup(flag.Name) == nil {
			err = &engine.FieldError{Field: "--" + flag.Name, Value: spec.Quote(flag.Value.String()), Rule: "cannot be given with the name of a server: mcp_servers of the daemon's configuration says how it runs"}
		}
	})
	return err
}

// logger returns a log for people, on stderr.
func (a *App) logger() *slog.Logger { return slog.New(slog.NewTextHandler(a.Stderr, nil)) }

func (a *App) mcpServe(ctx context.Context, c *client.Client, f *mcpServeFlags) error {
	s := f.server
	token := rand.Text()
	who := gateway.Caller{Key: s.Name, Client: func() (*client.Client, error) { return c, nil }}
	g := gateway.New(gateway.Options{Version: a.Version, Servers: []gateway.Server{s}, End: true, Logger: a.logger(),
		Caller: func(r *http.Request) (gateway.Caller, error) {
			if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+token)) == 0 {
				return gateway.Caller{}, errors.New("the token is missing or wrong: boxd mcp serve has printed it")
			}
			return who, nil
		}})
	defer func() {
		g.Close()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		_ = c.Remove(ctx, s.BoxID()) // it may never have been made, and ends by itself
	}()
	if f.stdio {
		return g.ServeStdio(ctx, s.Name, who, a.Stdin, a.Stdout)
	}
	host, _, err := net.SplitHostPort(f.listen)
	if ip := net.ParseIP(host); err != nil || host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return &engine.FieldError{Field: "--listen", Value: spec.Quote(f.listen), Rule: "must be a loopback address with a port, such as 127.0.0.1:8420; mcp_servers of the daemon's configuration serves other hosts"}
	}
	l, err := net.Listen("tcp", f.listen)
	if err != nil {
		return err
	}
	fmt.Fprintf(a.Stdout, "http://%s/mcp\nAuthorization: Bearer %s\n", l.Addr(), token)
	mux := http.NewServeMux()
	mux.HandleFunc("/mcp", func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = "/" + s.Name
		g.ServeHTTP(w, r)
	})
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute}
	defer context.AfterFunc(ctx, func() {
		g.Close() // ends what is in progress
		server.Close()
	})()
	if err := server.Serve(l); ctx.Err() == nil {
		return err
	}
	return nil
}
