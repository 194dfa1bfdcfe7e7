package cli

import (
	"context"
	"time"

	"github.com/boxd/boxd/api/apitypes"
	"github.com/boxd/boxd/client"
	"github.com/spf13/cobra"
)

func (a *App) newStop() *cobra.Command {
	var f remoteFlags
	var grace time.Duration
	cmd := &cobra.Command{
		Use:   "stop SESSION PROCESS [flags]",
		Short: "End a managed process",
		Long: `End a managed process: close its stdin, send it SIGTERM, and after a grace period kill
what is left of it and its descendants. Its output remains readable.`,
		Args: exactly("SESSION", "PROCESS"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				var r apitypes.StopRequest
				if grace > 0 {
					r.Grace = (*apitypes.Duration)(&grace)
				}
				p, err := c.Stop(ctx, args[0], args[1], r)
				if err == nil && f.json {
					err = writeJSON(a.Stdout, p)
				}
				return err
			})
		},
		ValidArgsFunction: a.completeNames(&f, listSessions, listProcesses),
	}
	cmd.Flags().Var(durationValue(&grace, ""), "grace", "time between SIGTERM and SIGKILL: `DURATION` (default: the daemon's)")
	f.register(cmd)
	completeFlag(cmd, "grace", "500ms", "2s", "10s")
	return cmd
}
