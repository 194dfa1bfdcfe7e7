package cli

import (
	"context"

	"github.com/boxd/boxd/client"
	"github.com/spf13/cobra"
)

func (a *App) newInspect() *cobra.Command {
	var f remoteFlags
	cmd := &cobra.Command{
		Use:   "inspect SESSION [PROCESS] [flags]",
		Short: "Print all details of a session or a process, as JSON",
		Long: `Print all details of a session, or of one of its managed processes, as indented JSON:
the answer of the API. --json prints it on one line.`,
		Example: `  boxd inspect lab
  boxd inspect lab server --format '{{.state}} {{.exit_code}}'`,
		Args: exactly("SESSION", "[PROCESS]"),
		RunE: func(_ *cobra.Command, args []string) error {
			return a.remote(&f, func(ctx context.Context, c *client.Client) error {
				var found any
				var err error
				if len(args) == 2 {
					found, err = c.Process(ctx, args[0], args[1])
				} else {
					found, err = c.Session(ctx, args[0])
				}
				if err != nil {
					return err
				}
				return a.printOne(&f.formatFlags, found, func(out screen) error { return encodeJSON(out, found, "  ") })
			})
		},
		ValidArgsFunction: a.completeNames(&f, listSessions, listProcesses),
	}
	f.registerFormat(cmd)
	f.register(cmd)
	return cmd
}
