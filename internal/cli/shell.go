package cli

import (
	"context"

	"github.com/boxd/boxd/engine"
	"github.com/boxd/boxd/internal/oneline"
	"github.com/spf13/cobra"
)

func (a *App) newShell() *cobra.Command {
	var f execFlags
	cmd := &cobra.Command{
		Use:   "shell [SESSION] [flags]",
		Short: "Open a shell in a session",
		Long: `Open a shell in a session: bash if the session has it, otherwise sh. This is short for
boxd exec -it. The session is created if it does not exist. Without SESSION, a new
session is created, and removed with its files when the shell ends.

Exit status: that of the shell.`,
		Example: `  boxd shell lab
  boxd shell --memory 1G`,
		Args: exactly("[SESSION]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if asTerminal(a.Stdin) == nil {
				return &engine.FieldError{Field: "stdin", Value: "is no terminal", Rule: "boxd shell needs one; boxd exec -i passes on a pipe or a file"}
			}
			if len(args) == 1 {
				return a.atTerminal(&f, args[0], false, []string{"bash"}, []string{"sh"})
			}
			if f.noCreate {
				return &engine.FieldError{Field: "--no-create", Value: "without SESSION", Rule: "there is no session to use: name one"}
			}
			session := randomID("shell")
			defer a.removeShell(&f.remoteFlags, session)
			return a.atTerminal(&f, session, false, []string{"bash"}, []string{"sh"})
		},
		ValidArgsFunction: a.completeNames(&f.remoteFlags, listSessions),
	}
	f.registerPlace(cmd, "the workspace", "the session's")
	f.specFlags.register(a, cmd, &f.remoteFlags)
	f.registerDaemon(cmd)
	return cmd
}

// removeShell removes the session of a boxd shell that was started without SESSION.
func (a *App) removeShell(f *remoteFlags, session string) {
	c, err := a.newClient(f)
	if err != nil {
		return // the session could not be created either
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), terminalRemoval)
	defer cancel()
	if err := ignoreGone(c.Remove(ctx, session)); err != nil && !isRefused(err) {
		a.say("boxd: session %s stays: %s; boxd sessions rm %s removes it", session, oneline.Error(err), session)
	}
}
