package cli

import (
	"context"

	"github.com/boxd/boxd/client"
	"github.com/boxd/boxd/engine"
	"github.com/spf13/cobra"
)

func (a *App) newKill() *cobra.Command {
	var f remoteFlags
	var signal string
	cmd := &cobra.Command{
		Use:   "kill SESSION PROCESS [flags]",
		Short: "Send a signal to a managed process, by default SIGKILL",
		Long: `Send a signal to a managed process, by default SIGKILL. Only the process itself gets
it; boxd stop ends its descendants as well, and waits for the end.`,
		Example: `  boxd kill lab server
  boxd kill -s HUP lab server`,
		Args: exactly("SESSION", "PROCESS"),
		RunE: func(_ *cobra.Command, args []string) error {
			if signal == "" {
				return &engine.FieldError{Field: "--signal", Value: `""`, Rule: "must be the name or number of a signal, such as HUP"}
			}
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				err := c.Signal(ctx, args[0], args[1], signal)
				if err == nil && f.json {
					err = writeJSON(a.Stdout, map[string]string{"session": args[0], "process": args[1], "signal": signal})
				}
				return err
			})
		},
		ValidArgsFunction: a.completeNames(&f, listSessions, listProcesses),
	}
	cmd.Flags().StringVarP(&signal, "signal", "s", "SIGKILL", "`SIGNAL` to send, by name or number")
	f.register(cmd)
	completeFlag(cmd, "signal", "SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGSTOP", "SIGCONT")
	return cmd
}
