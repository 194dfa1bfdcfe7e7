package cli

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/mcp"
	"github.com/spf13/cobra"
)

type mcpFlags struct {
	remoteFlags
	stdio   bool
	options mcp.Options
}

func (a *App) newMCP() *cobra.Command {
	var f mcpFlags
	cmd := &cobra.Command{
		Use:   "mcp --stdio [flags]",
		Short: "Let a language model work in a box: serve MCP on stdin and stdout",
		Long: `Serve the Model Context Protocol on stdin and stdout, for desktop programs that start such
servers. The tools run commands and code in a session of the daemon, keep processes there,
and read and write its files. For programs that connect by HTTP, the daemon serves the same
tools at /mcp.

Which session that is follows from the program that connects and from the user of this
command: the same program finds its files again. --session names another one. The model
cannot choose, unless --session-tool lets it.

Messages go to stderr. The end of stdin ends the command and what runs in calls; processes
that the model has started stay, as does the session.`,
		Example: `  boxd mcp --stdio
  boxd mcp --stdio --profile network_basic --session lab`,
		Args: exactly(),
		RunE: func(*cobra.Command, []string) error {
			if !f.stdio {
				return &engine.FieldError{Field: "--stdio", Value: "is missing", Rule: "this command speaks on stdin and stdout only; the daemon serves HTTP at /mcp"}
			}
			return a.remote(&f.remoteFlags, func(ctx context.Context, c *client.Client) error { return a.mcp(ctx, c, &f) })
		},
	}
	cmd.AddCommand(a.newMCPServe())
	f.registerDaemon(cmd)
	fs := cmd.Flags()
	fs.BoolVar(&f.stdio, "stdio", false, "speak on stdin and stdout")
	fs.StringVar(&f.options.Session, "session", "", "work in the session `ID` (default: one for each program and user)")
	fs.StringVar(&f.options.Profile, "profile", "", "`NAME` of the profile of new sessions (default: the tenant's)")
	fs.StringVar(&f.options.Scope, "scope", "", "`TEMPLATE` of the session's id, if token and profile have none (default: "+mcp.DefaultScope+")")
	fs.BoolVar(&f.options.SessionTool, "session-tool", false, "let the model choose, list and end sessions")
	completeFlag(cmd, "scope")
	completeFlag(cmd, "profile")
	completeFlag(cmd, "session")
	return cmd
}

func (a *App) mcp(ctx context.Context, c *client.Client, f *mcpFlags) error {
	// Also tells whether the daemon can be reached, before the program is answered.
	status, err := awaitStatus(ctx, c, 0, answerPatience)
	if err != nil {
		return err
	}
	user := "uid:" + strconv.Itoa(os.Getuid())
	o := mcp.StdioOptions{Options: f.options, Client: c, Actor: user, Key: user, In: io.NopCloser(a.Stdin), Out: unclosed{a.Stdout}}
	if path := a.env(f.tokenFile, "BOXD_TOKEN_FILE"); path != "" {
		token, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		o.Actor += " " + path
		o.Key = fmt.Sprintf("token:%x", sha256.Sum256(bytes.TrimSpace(token))) // users of other hosts have the same number and path
	}
	o.Version, o.Previews = a.Version, status.Previews
	err = mcp.ServeStdio(ctx, o)
	if errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

// unclosed is an output that this process goes on to own.
type unclosed struct{ io.Writer }

func (unclosed) Close() error { return nil }
